// given_test.c - with preempt/far/given.c.
//
// Memory with rewritten code is the program's once a request has its answer. The library unmaps what no request got.
#define _GNU_SOURCE
#include "preempt/bridge.h"
#include "preempt/far/far.h"
#include "test/units/check.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int answered;
void gp_bridge_request_answer(const struct gp_bridge_answer *a) { answered++; }

static bool is_mapped(int64_t at) { return !msync((void *)(uintptr_t)at, 4096, MS_ASYNC); }

int main(void)
{
	enum { BYTES = 3 * 4096 + 5, PLACES = 16 };
	static char text[BYTES];
	int fd = memfd_create("code", MFD_CLOEXEC);
	memset(text, 'c', sizeof text);
	CHECK(write(fd, text, sizeof text) == BYTES);

	int64_t taken = gp_given_map(fd, BYTES), given = gp_given_map(fd, BYTES), left = gp_given_map(fd, BYTES);
	CHECK(taken > 0 && given > 0 && left > 0 && !memcmp((void *)(uintptr_t)taken, text, BYTES));
	gp_given_answer(&(struct gp_bridge_answer){0});
	gp_given_answer(&(struct gp_bridge_answer){.rewritten = (uint64_t)taken});
	gp_given_answer(&(struct gp_bridge_answer){.picked = (uint64_t)given});
	CHECK(answered == 3);
	gp_given_return();
	CHECK(is_mapped(taken) && is_mapped(given) && !is_mapped(left));

	// Pages that the program gives back are free: they are no part of a file.
	char *code = (char *)(uintptr_t)taken;
	CHECK(!madvise(code, 4096, MADV_DONTNEED) && !code[0] && code[4096] == 'c');
	CHECK(!munmap(code, BYTES));

	// A file that is shorter than it was said to be, and too many that nobody takes.
	CHECK(gp_given_map(fd, BYTES + 1) == -EIO);
	int64_t at = 0;
	int count = 0;
	while (count <= PLACES && (at = gp_given_map(fd, BYTES)) > 0)
		count++;
	CHECK(count == PLACES && at == -ENOMEM);
	gp_given_return();
	CHECK(gp_given_map(fd, BYTES) > 0);
	gp_given_return();
	return 0;
}
