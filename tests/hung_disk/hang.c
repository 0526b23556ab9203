/* A file layer that hangs when told to, for LD_PRELOAD.

   The file HANG_CONTROL has lines `call part`: a call of that name (fsync, fdatasync, statvfs,
   pwrite, pwritev) on a path with that part in it begins once no line says so any more, or after
   HANG_S_MAX seconds. It notes itself in HANG_CONTROL.seen before it waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define HANG_S_MAX 300

static int told(const char *control, const char *call, const char *path) {
  char text[4096], *line, *rest = text;
  int fd = open(control, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  size_t length = strlen(call);
  while ((line = strsep(&rest, "\n")))
    if (!strncmp(line, call, length) && line[length] == ' ' && strstr(path, line + length + 1))
      return 1;
  return 0;
}

static void hang(const char *call, const char *path) {
  const char *control = getenv("HANG_CONTROL");
  char seen[PATH_MAX], note[PATH_MAX + 32];
  if (!control || !told(control, call, path)) return;
  snprintf(seen, sizeof seen, "%s.seen", control);
  int out = open(seen, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (out >= 0) {
    int n = snprintf(note, sizeof note, "%s %s\n", call, path);
    if (write(out, note, n) != n) abort();
    close(out);
  }
  struct timespec step = {0, 10 * 1000 * 1000};
  for (int i = 0; i < HANG_S_MAX * 100 && told(control, call, path); i++) nanosleep(&step, 0);
}

static void hang_fd(const char *call, int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, PATH_MAX - 1);
  if (n <= 0) return;
  path[n] = 0;
  hang(call, path);
}

#define REAL(name) __typeof__(&name) real = dlsym(RTLD_NEXT, #name)
#define SYNC(name) \
  int name(int fd) { REAL(name); hang_fd(#name, fd); return real(fd); }
#define PWRITE(name) \
  ssize_t name(int fd, const void *data, size_t size, off64_t at) { \
    REAL(name); \
    hang_fd("pwrite", fd); return real(fd, data, size, at); }
#define PWRITEV(name) \
  ssize_t name(int fd, const struct iovec *parts, int count, off64_t at) { \
    REAL(name); \
    hang_fd("pwritev", fd); return real(fd, parts, count, at); }
#define PWRITEV2(name) \
  ssize_t name(int fd, const struct iovec *parts, int count, off64_t at, int flags) { \
    REAL(name); \
    hang_fd("pwritev", fd); return real(fd, parts, count, at, flags); }
#define STATVFS(name, type) \
  int name(const char *path, struct type *found) { \
    REAL(name); \
    hang("statvfs", path); return real(path, found); }

SYNC(fsync)
SYNC(fdatasync)
PWRITE(pwrite)
PWRITE(pwrite64)
PWRITEV(pwritev)
PWRITEV(pwritev64)
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)
STATVFS(statvfs, statvfs)
STATVFS(statvfs64, statvfs64)
