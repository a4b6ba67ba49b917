// given.c - memory of the program that holds code which the helper has rewritten, until a request has its answer.
#define _GNU_SOURCE
#include "preempt/bridge.h"
#include "preempt/far/far.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

// writers: the thread with the descriptors takes a free place (at 0), fills it in, and empties all once the lane CORE has ended; a thread that
// answers a request frees its place. readers: the same. pairing: release stores of at, acquire loads. what breaks: memory is unmapped in use.
enum { PLACES = 16 }; // two images for each request under way, and more
static struct {
	_Atomic int64_t at;
	uint64_t bytes;
} place[PLACES];

// A private mapping of the file would keep the file's memory for as long as it lasts, whatever the program gives back of it.
int64_t gp_given_map(int fd, uint64_t bytes)
{
	int free = 0;
	while (free < PLACES && place[free].at)
		free++;
	if (free == PLACES)
		return -ENOMEM;
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return -errno;
	for (uint64_t done = 0; done < bytes;) {
		ssize_t n = pread(fd, at + done, bytes - done, (off_t)done);
		if (n <= 0 && !(n < 0 && errno == EINTR)) {
			int64_t error = n ? -errno : -EIO;
			munmap(at, bytes);
			return error;
		}
		done += n > 0 ? (uint64_t)n : 0;
	}
	place[free].bytes = bytes;
	place[free].at = (int64_t)(uintptr_t)at;
	return place[free].at;
}

static void take(uint64_t address)
{
	for (int i = 0; i < PLACES && address; i++)
		if (place[i].at == (int64_t)address)
			place[i].at = 0;
}

// First: behind the answer the program may unmap that memory, and the next may have its address.
void gp_given_answer(const struct gp_bridge_answer *a)
{
	take(a->picked);
	take(a->rewritten);
	gp_bridge_request_answer(a);
}

void gp_given_return(void)
{
	for (int i = 0; i < PLACES; i++)
		if (place[i].at) {
			munmap((void *)(uintptr_t)place[i].at, place[i].bytes);
			place[i].at = 0;
		}
}
