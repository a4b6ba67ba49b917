// say.c - writes to standard error, and never waits for its reader.
//
// Standard error is the program's, often shared with other processes: a pipe whose reader is stopped, a terminal that is held by Ctrl-S.
// Its open file description must not change. So say opens the same pipe or terminal again, and sets O_NONBLOCK on that description.
// Between asking and writing, its room may go to another writer: no look ahead would do.
#include "exports/layer.h"
#include "preempt/driver/cancel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LOWEST_FREE = STDERR_FILENO + 1, PAGE_BYTES = 4096 };

// Where the program was started without a standard error, the first file that it opens gets the number.
static atomic_bool absent;

void gp_find_stderr(void) { absent = fcntl(STDERR_FILENO, F_GETFD) < 0; }

// The result of writing: bytes, or why there are none.
static long outcome(ssize_t written, size_t bytes)
{
	if (written >= 0)
		return written;
	switch (errno) {
	case EAGAIN:
	case EINTR:
	case ENOBUFS:
	case ENOSPC:
	case EDQUOT: return GP_NO_ROOM;
	default: return (long)bytes; // it has no reader any more
	}
}

// A pipe that another user made cannot be opened again. It takes pages without waiting.
static long give_page(int fd, const char *text, size_t bytes)
{
	void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return GP_NO_ROOM;
	struct iovec part = {page, bytes < PAGE_BYTES ? bytes : PAGE_BYTES};
	memcpy(page, text, part.iov_len);
	ssize_t given = vmsplice(fd, &part, 1, SPLICE_F_NONBLOCK);
	long result = given < 0 && (errno == ENOSYS || errno == EPERM) ? GP_MAY_WAIT : outcome(given, bytes);
	munmap(page, PAGE_BYTES); // a page in the pipe is the pipe's
	return result;
}

static long write_again(int fd, mode_t type, const char *text, size_t bytes)
{
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (own < 0) // ENXIO: a pipe without a reader
		return errno == ENXIO ? (long)bytes : S_ISFIFO(type) ? give_page(fd, text, bytes) : GP_MAY_WAIT;
	long result = outcome(write(own, text, bytes), bytes);
	close(own);
	return result;
}

// A duplicate keeps its open file, whatever the program does to the number meanwhile.
static long say(const char *text, size_t bytes)
{
	struct stat is;
	int fd = absent ? -1 : fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, LOWEST_FREE);
	if (fd < 0)
		return !absent && errno == EMFILE ? GP_NO_ROOM : (long)bytes;
	long result = (long)bytes;
	if (fstat(fd, &is))
		result = GP_MAY_WAIT;
	else if (S_ISREG(is.st_mode))
		result = outcome(write(fd, text, bytes), bytes);
	else if (S_ISSOCK(is.st_mode))
		result = outcome(send(fd, text, bytes, MSG_DONTWAIT), bytes);
	else
		result = write_again(fd, is.st_mode, text, bytes);
	close(fd);
	return result;
}

long gp_say(const char *text, size_t bytes)
{
	int saved_errno = errno, before = gp_cancel_off();
	long result = say(text, bytes);
	gp_cancel_on(before);
	errno = saved_errno;
	return result;
}
