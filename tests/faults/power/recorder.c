/* A recorder of what a process does to the files of a directory, for LD_PRELOAD.

   POWER_DIR is the directory, POWER_TRACE the file that gets a record of each write, change of
   size, name and fsync, in order. What a power cut at any record leaves is made of it
   (`tests/faults/power/disk.py`). No fsync is passed on: a kill loses nothing of the page cache, and
   the trace says what was asked for. It takes POWER_SYNC_US instead. POWER_FORGETS are patterns of
   paths, one a line, whose fsyncs are not recorded: planted mistakes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, SIZE, SYNC_BEGIN, SYNC_END, DIR_BEGIN, DIR_END, RENAME, LINK, UNLINK,
       MKDIR, RMDIR };

struct head {
  uint32_t length; /* with the head */
  uint32_t kind;
  uint64_t inode;
  int64_t number; /* a position, a size, or which fsync */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static int64_t syncs;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void give_up(const char *what) {
  fprintf(stderr, "recorder: %s\n", what);
  abort();
}

static const char *root(void) { return getenv("POWER_DIR"); }

static int within(const char *path) {
  const char *dir = root();
  size_t n = dir ? strlen(dir) : 0;
  return n && !strncmp(path, dir, n) && (path[n] == '/' || !path[n]);
}

/* The path of a name as the calls take it; whether it is in the directory. */
static int full(int at, const char *name, char *path) {
  char link[64];
  if (!root()) return 0;
  if (name[0] == '/') {
    snprintf(path, PATH_MAX, "%s", name);
  } else {
    if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n <= 0) return 0;
    snprintf(path + n, PATH_MAX - n, "/%s", name);
  }
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') path[--n] = 0;
  return within(path);
}

static int path_of(int fd, char *path) {
  char link[64];
  if (!root()) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, PATH_MAX - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  return within(path);
}

/* Whether this is a file of the directory. */
static int ours(int fd, struct stat *st) {
  char path[PATH_MAX];
  return root() && !fstat(fd, st) && S_ISREG(st->st_mode) && path_of(fd, path);
}

static void note(int kind, uint64_t inode, int64_t number, const struct iovec *parts, int count) {
  struct iovec all[IOV_MAX];
  struct head head = {sizeof head, kind, inode, number};
  if (trace < 0) {
    int fd = REAL(open)(getenv("POWER_TRACE"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    trace = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (trace < 0) give_up("no trace");
    REAL(close)(fd);
  }
  all[0] = (struct iovec){&head, sizeof head};
  for (int i = 0; i < count; i++) {
    all[i + 1] = parts[i];
    head.length += parts[i].iov_len;
  }
  if (REAL(writev)(trace, all, count + 1) != head.length) give_up("the trace is full");
}

static void note_text(int kind, uint64_t inode, int64_t number, const char *a, const char *b) {
  struct iovec parts[3] = {{(void *)a, strlen(a)}, {"", 1}, {(void *)b, strlen(b)}};
  note(kind, inode, number, parts, *b ? 3 : 1);
}

#define LOCKED(call) \
  ({ pthread_mutex_lock(&lock); __typeof__(call) rc_ = (call); int e_ = errno; \
     pthread_mutex_unlock(&lock); errno = e_; rc_; })

/* -- bytes */

static ssize_t put_locked(int fd, struct stat *st, const struct iovec *parts, int count, off_t at) {
  size_t n = 0;
  int own = at < 0; /* it moves the file's own position */
  if (count >= IOV_MAX) give_up("too many parts");
  if (fstat(fd, st)) return -1;
  if (own) at = fcntl(fd, F_GETFL) & O_APPEND ? st->st_size : lseek(fd, 0, SEEK_CUR);
  for (int i = 0; i < count; i++) n += parts[i].iov_len;
  if (n) note(WRITE, st->st_ino, at, parts, count);
  ssize_t done = own ? REAL(writev)(fd, parts, count) : REAL(pwritev64)(fd, parts, count, at);
  if (done != (ssize_t)n) give_up("a write was cut short");
  return done;
}

static ssize_t put(int fd, struct stat *st, const struct iovec *parts, int count, off_t at) {
  return LOCKED(put_locked(fd, st, parts, count, at));
}

ssize_t write(int fd, const void *data, size_t size) {
  struct stat st;
  if (!ours(fd, &st)) return REAL(write)(fd, data, size);
  struct iovec part = {(void *)data, size};
  return put(fd, &st, &part, 1, -1);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  struct stat st;
  return ours(fd, &st) ? put(fd, &st, parts, count, -1) : REAL(writev)(fd, parts, count);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  struct stat st;
  if (!ours(fd, &st)) return REAL(pwrite64)(fd, data, size, at);
  struct iovec part = {(void *)data, size};
  return put(fd, &st, &part, 1, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  return pwrite64(fd, data, size, at);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
  struct stat st;
  if (!ours(fd, &st)) return REAL(pwritev64v2)(fd, parts, count, at, flags);
  return put(fd, &st, parts, count, at);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
  return pwritev64v2(fd, parts, count, at, 0);
}

static int resized_locked(int fd, off64_t size) {
  struct stat st;
  if (fstat(fd, &st)) return -1;
  note(SIZE, st.st_ino, size, NULL, 0);
  return REAL(ftruncate64)(fd, size);
}
int ftruncate64(int fd, off64_t size) {
  struct stat st;
  return ours(fd, &st) ? LOCKED(resized_locked(fd, size)) : REAL(ftruncate64)(fd, size);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int posix_fallocate64(int fd, off64_t at, off64_t size) {
  struct stat st;
  if (!ours(fd, &st)) return REAL(posix_fallocate64)(fd, at, size);
  return LOCKED(st.st_size < at + size ? resized_locked(fd, at + size) : 0);
}

/* Calls that nobody makes here: to be recorded, too, once somebody does. */
#define REFUSED(type, name, parameters, arguments) \
  type name parameters { \
    struct stat st; \
    if (ours(fd, &st)) give_up(#name " is not recorded"); \
    return REAL(name) arguments; \
  }
REFUSED(ssize_t, copy_file_range, (int from, off64_t *a, int fd, off64_t *b, size_t n, unsigned f),
        (from, a, fd, b, n, f))
REFUSED(ssize_t, splice, (int from, off64_t *a, int fd, off64_t *b, size_t n, unsigned f),
        (from, a, fd, b, n, f))
ssize_t sendfile64(int fd, int from, off64_t *at, size_t n) {
  struct stat st;
  if (ours(fd, &st)) give_up("sendfile is not recorded");
  return REAL(sendfile64)(fd, from, at, n);
}
void *mmap64(void *where, size_t n, int use, int flags, int fd, off64_t at) {
  struct stat st;
  if (flags & MAP_SHARED && use & PROT_WRITE && ours(fd, &st)) give_up("mmap is not recorded");
  return REAL(mmap64)(where, n, use, flags, fd, at);
}
void *mmap(void *where, size_t n, int use, int flags, int fd, off_t at) {
  return mmap64(where, n, use, flags, fd, at);
}
int fallocate64(int fd, int mode, off64_t at, off64_t size) {
  struct stat st; /* RocksDB: room for what comes, at the same size */
  if (ours(fd, &st) && mode != FALLOC_FL_KEEP_SIZE) give_up("fallocate is not recorded");
  return REAL(fallocate64)(fd, mode, at, size);
}
int fallocate(int fd, int mode, off_t at, off_t size) { return fallocate64(fd, mode, at, size); }

/* -- fsync */

static int forgotten(const char *path) {
  char lines[PATH_MAX], *rest = lines, *one;
  const char *found = getenv("POWER_FORGETS");
  snprintf(lines, sizeof lines, "%s", found ? found : "");
  while ((one = strsep(&rest, "\n")))
    if (*one && !fnmatch(one, path + strlen(root()), 0)) return 1;
  return 0;
}

static int synced(const char *name, int fd) {
  struct stat st;
  char path[PATH_MAX];
  if (!root() || fstat(fd, &st) || !path_of(fd, path))
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
  if (forgotten(path)) return 0;
  int is_dir = S_ISDIR(st.st_mode);
  const char *us = getenv("POWER_SYNC_US");
  pthread_mutex_lock(&lock);
  int64_t number = ++syncs;
  note_text(is_dir ? DIR_BEGIN : SYNC_BEGIN, st.st_ino, number, path, "");
  pthread_mutex_unlock(&lock);
  usleep(us ? atoi(us) : 200);
  pthread_mutex_lock(&lock);
  note_text(is_dir ? DIR_END : SYNC_END, st.st_ino, number, path, "");
  pthread_mutex_unlock(&lock);
  return 0;
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }

/* -- names */

static int opened_locked(int at, const char *path, int flags, mode_t mode) {
  struct stat st;
  int there = !fstatat(at, path, &st, 0);
  if (there && flags & O_TRUNC && S_ISREG(st.st_mode) && st.st_size)
    note(SIZE, st.st_ino, 0, NULL, 0);
  int fd = REAL(openat64)(at, path, flags, mode);
  if (fd >= 0 && !there && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
    char whole[PATH_MAX];
    path_of(fd, whole);
    note_text(CREATE, st.st_ino, 0, whole, "");
  }
  return fd;
}

static int opened(int at, const char *path, int flags, mode_t mode) {
  char whole[PATH_MAX];
  if (!(flags & (O_CREAT | O_TRUNC)) || !full(at, path, whole))
    return REAL(openat64)(at, path, flags, mode);
  if (flags & (O_DSYNC | O_DIRECT)) give_up("such an open is not recorded");
  return LOCKED(opened_locked(at, path, flags, mode));
}

#define MODE \
  va_list more; \
  va_start(more, flags); \
  mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
  va_end(more)
#define OPEN(name) \
  int name(const char *path, int flags, ...) { MODE; return opened(AT_FDCWD, path, flags, mode); } \
  int name##at(int at, const char *path, int flags, ...) { \
    MODE; \
    return opened(at, path, flags, mode); \
  }
OPEN(open)
int open64(const char *path, int flags, ...) { MODE; return opened(AT_FDCWD, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE; return opened(at, path, flags, mode); }

static uint64_t inode_of(const char *path) {
  struct stat st;
  return lstat(path, &st) ? 0 : st.st_ino;
}

static int renamed(int a, const char *from, int b, const char *to) {
  char old[PATH_MAX], new[PATH_MAX];
  int known = full(a, from, old), wanted = full(b, to, new);
  if (known != wanted) give_up("a name comes from elsewhere");
  pthread_mutex_lock(&lock);
  uint64_t inode = known ? inode_of(old) : 0;
  int rc = REAL(renameat)(a, from, b, to);
  if (!rc && known) note_text(RENAME, inode, 0, old, new);
  pthread_mutex_unlock(&lock);
  return rc;
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to); }

static int linked(int a, const char *from, int b, const char *to, int flags) {
  char old[PATH_MAX], new[PATH_MAX];
  int known = full(a, from, old), wanted = full(b, to, new);
  if (known && !wanted) give_up("a file gets a name elsewhere");
  pthread_mutex_lock(&lock);
  int rc = REAL(linkat)(a, from, b, to, flags);
  if (!rc && wanted) note_text(LINK, inode_of(new), 0, new, "");
  pthread_mutex_unlock(&lock);
  return rc;
}
int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
  return linked(a, from, b, to, flags);
}

static int gone(int at, const char *name, int flags) {
  char path[PATH_MAX];
  int known = full(at, name, path);
  pthread_mutex_lock(&lock);
  uint64_t inode = known ? inode_of(path) : 0;
  int rc = REAL(unlinkat)(at, name, flags);
  if (!rc && known) note_text(flags & AT_REMOVEDIR ? RMDIR : UNLINK, inode, 0, path, "");
  pthread_mutex_unlock(&lock);
  return rc;
}
int unlink(const char *path) { return gone(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return gone(at, path, flags); }
int rmdir(const char *path) { return gone(AT_FDCWD, path, AT_REMOVEDIR); }

static int made(int at, const char *name, mode_t mode) {
  char path[PATH_MAX];
  int known = full(at, name, path);
  pthread_mutex_lock(&lock);
  int rc = REAL(mkdirat)(at, name, mode);
  if (!rc && known) note_text(MKDIR, inode_of(path), 0, path, "");
  pthread_mutex_unlock(&lock);
  return rc;
}
int mkdir(const char *path, mode_t mode) { return made(AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return made(at, path, mode); }
