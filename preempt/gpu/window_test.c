// window_test.c - with preempt/gpu/window.c preempt/process/process.c
//
// Memory that takes the place of other memory leaves its own place to whoever maps something there, at once.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/check.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGES = sizeof(struct gp_view) / GP_PAGE, SLOT = 3 };

static char *taken[PAGES]; // by another thread, as soon as a page has left
static int count, refused_at = -1;

// The kernel's, beside another thread that maps a page whenever there is room.
void *mremap(void *from, size_t old, size_t new, int flags, ...)
{
	va_list list;
	va_start(list, flags);
	void *to = va_arg(list, void *);
	va_end(list);
	if (count == refused_at)
		return MAP_FAILED;
	void *moved = (void *)syscall(SYS_mremap, from, old, new, flags, to);
	CHECK(moved == to && count < PAGES);
	char *page = mmap(from, old, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(page == from);
	*page = 42;
	taken[count++] = page;
	return moved;
}

// What windows need of holds and contexts, which are not there.
void gp_hold_release(struct gp_context *c) { (void)c; }
uint64_t gp_hold_look(struct gp_context *c, uint64_t now, bool unfinished)
{
	(void)c, (void)now, (void)unfinished;
	return 0;
}
bool gp_query(struct gp_context *c) { return c != NULL; }
bool gp_idle(struct gp_context *c, uint64_t activity, uint64_t now)
{
	(void)activity, (void)now;
	return c != NULL;
}

static struct gp_view *map(unsigned char filled)
{
	struct gp_view *v = mmap(NULL, sizeof *v, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(v != MAP_FAILED);
	memset(v, filled, sizeof *v);
	return v;
}

static void kept(void)
{
	for (int i = 0; i < count; i++) {
		CHECK(*taken[i] == 42); // a crash where it is unmapped
		munmap(taken[i], (size_t)sysconf(_SC_PAGESIZE));
	}
	count = 0;
}

// What lower levels may have while windows are open: what the least generous one says, and nothing of those that are closed.
static void leave(void)
{
	struct gp_view *view = map(0);
	struct gp_segment *s = &view->segment;

	CHECK(gp_windows_leave(s, 0) == UINT32_MAX && gp_windows_leave(s, ~0ull) == UINT32_MAX);
	gp_line_of(s, 5)->leaves = 64;
	gp_line_of(s, 37)->leaves = 16; // has the same line of its page
	gp_line_of(s, 63)->leaves = UINT32_MAX;
	CHECK(gp_windows_leave(s, ~0ull) == UINT32_MAX); // all are closed
	gp_line_of(s, 5)->window_opened_ns = 1;
	CHECK(gp_windows_leave(s, ~0ull) == 64);
	gp_line_of(s, 63)->window_opened_ns = 1;
	gp_line_of(s, 37)->window_opened_ns = 1;
	CHECK(gp_windows_leave(s, ~0ull) == 16 && gp_windows_leave(s, ~(1ull << 37)) == 64);
	CHECK(gp_windows_leave(s, 1ull << 63) == UINT32_MAX); // whatever a peer says
	gp_line_of(s, 0)->window_opened_ns = 1;               // publishes none
	CHECK(gp_windows_leave(s, ~0ull) == 0 && gp_windows_leave(s, ~1ull) == 16);
	CHECK(gp_windows_leave(s, 2) == UINT32_MAX);
	munmap(view, sizeof *view);
}

int main(void)
{
	leave();
	struct gp_gpu *g = &gp_gpu[0];
	struct gp_view *view = map(1);

	pthread_spin_init(&g->lock, 0);
	g->segment = &view->segment;
	g->slot = SLOT;
	CHECK(gp_gpu_move(g, map(2), SLOT + 1, true, false));
	CHECK(count == PAGES && g->slot == SLOT + 1 && g->paged);
	for (size_t at = 0; at < sizeof *view; at += GP_PAGE)
		CHECK(((unsigned char *)view)[at] == 2);
	kept();

	refused_at = 1; // of the process's own pages: nothing else is replaced
	CHECK(!gp_gpu_move(g, map(3), SLOT, false, false));
	CHECK(count == 1 && g->slot == SLOT + 1 && g->paged && *(unsigned char *)view == 2);
	kept();
	return 0;
}
