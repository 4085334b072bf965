/* A disk that misbehaves on demand, for a real process: LD_PRELOAD=shim.so DISK_SHIM=control.
 *
 * The control file is mapped by whoever commands and by the process; it is `struct control` below, written by shim.py.
 * While a fault is on, calls on files whose path begins with `under` fail (or are late); all others go through. Each
 * call that failed is counted, so that whoever commands knows that the fault was felt. Sockets and pipes have no such
 * path.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    volatile uint32_t write_errno; /* 0: none */
    volatile uint32_t read_errno;
    volatile uint32_t sync_errno;
    volatile uint32_t sync_delay_ms;
    volatile uint32_t write_hits;
    volatile uint32_t read_hits;
    volatile uint32_t sync_hits;
    volatile uint32_t under_size;
    char under[1024];
};

static struct control none;
static struct control *control = &none;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("DISK_SHIM");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *map = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED)
        control = map;
}

static int is_under(int fd)
{
    char link[64], path[2048];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path);
    return size >= (ssize_t)control->under_size && memcmp(path, control->under, control->under_size) == 0;
}

static int fails(volatile uint32_t *error, volatile uint32_t *hits, int fd)
{
    uint32_t found = *error;
    if (found == 0 || !is_under(fd))
        return 0;
    __sync_fetch_and_add(hits, 1);
    errno = (int)found;
    return 1;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define WRITE_FAILS(fd) fails(&control->write_errno, &control->write_hits, fd)
#define READ_FAILS(fd) fails(&control->read_errno, &control->read_hits, fd)

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { REAL(pwrite64); return WRITE_FAILS(fd) ? -1 : real(fd, data, size, at); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { REAL(pwrite); return WRITE_FAILS(fd) ? -1 : real(fd, data, size, at); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) { REAL(pwritev64v2); return WRITE_FAILS(fd) ? -1 : real(fd, parts, count, at, flags); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { REAL(pwritev64); return WRITE_FAILS(fd) ? -1 : real(fd, parts, count, at); }
ssize_t write(int fd, const void *data, size_t size) { REAL(write); return WRITE_FAILS(fd) ? -1 : real(fd, data, size); }

ssize_t pread64(int fd, void *data, size_t size, off64_t at) { REAL(pread64); return READ_FAILS(fd) ? -1 : real(fd, data, size, at); }
ssize_t pread(int fd, void *data, size_t size, off_t at) { REAL(pread); return READ_FAILS(fd) ? -1 : real(fd, data, size, at); }
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) { REAL(preadv64v2); return READ_FAILS(fd) ? -1 : real(fd, parts, count, at, flags); }
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t at) { REAL(preadv64); return READ_FAILS(fd) ? -1 : real(fd, parts, count, at); }

static int sync_fails(int fd)
{
    uint32_t delay_ms = control->sync_delay_ms;
    if (delay_ms && is_under(fd)) {
        struct timespec wait = {delay_ms / 1000, (long)(delay_ms % 1000) * 1000000};
        __sync_fetch_and_add(&control->sync_hits, 1);
        nanosleep(&wait, NULL);
    }
    return fails(&control->sync_errno, &control->sync_hits, fd);
}

int fdatasync(int fd) { REAL(fdatasync); return sync_fails(fd) ? -1 : real(fd); }
int fsync(int fd) { REAL(fsync); return sync_fails(fd) ? -1 : real(fd); }

/* A full disk has no free bytes, either. */
static int empty(int result, struct statvfs64 *found)
{
    if (result == 0 && control->write_errno == ENOSPC)
        found->f_bavail = found->f_bfree = 0;
    return result;
}

int statvfs64(const char *path, struct statvfs64 *found) { REAL(statvfs64); return empty(real(path, found), found); }
int fstatvfs64(int fd, struct statvfs64 *found) { REAL(fstatvfs64); return empty(real(fd, found), found); }
