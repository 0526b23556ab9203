/* A file layer that forgets what was not synced, for LD_PRELOAD.

   For each file under POWERCUT_DIR the length that reached the disk is kept in a side file
   beside it, <name>.synced, rewritten at each fsync or fdatasync. "Cutting the power" is then:
   kill the process, and cut every file back to that length (a file that was never synced: to
   nothing). Renames take the side file along. It fits append-only files, which ours all are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int path_of(int fd, char *path) {
  char link[64];
  const char *root = getenv("POWERCUT_DIR");
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, PATH_MAX - 1);
  if (n <= 0 || !root) return 0;
  path[n] = 0;
  return strncmp(path, root, strlen(root)) == 0;
}

/* The length before the sync: what another thread appends meanwhile is not promised. */
static long long length_of(int fd) {
  struct stat st;
  return fstat(fd, &st) || !S_ISREG(st.st_mode) ? -1 : (long long)st.st_size;
}

static void note(int fd, long long length) {
  char path[PATH_MAX], side[PATH_MAX + 16], text[32];
  if (length < 0 || !path_of(fd, path)) return;
  snprintf(side, sizeof side, "%s.synced", path);
  int out = open(side, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (out < 0) return;
  int n = snprintf(text, sizeof text, "%020lld", length); /* one write: a kill leaves it whole */
  if (write(out, text, n) != n) abort();
  close(out);
}

static int synced(const char *name, int fd) {
  int (*real)(int) = dlsym(RTLD_NEXT, name);
  long long length = length_of(fd);
  int rc = real(fd);
  if (!rc) note(fd, length);
  return rc;
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }

int rename(const char *from, const char *to) {
  int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
  char a[PATH_MAX + 16], b[PATH_MAX + 16];
  int rc = real(from, to);
  if (!rc) {
    snprintf(a, sizeof a, "%s.synced", from);
    snprintf(b, sizeof b, "%s.synced", to);
    if (real(a, b)) unlink(b);
  }
  return rc;
}
