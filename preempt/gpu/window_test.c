// window_test.c - with preempt/gpu/window.c preempt/gpu/objective.c preempt/gpu/steps.c preempt/gpu/slots.c preempt/gpu/law.c preempt/gpu/switch.c preempt/process/process.c.
//
// Memory that takes the place of other memory leaves its own place at once to another mapping. Also how long windows stay open, and who hears of
// them.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/check.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Atomic uint32_t gp_captures; // none is under way

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

// The kernel's, which may give the processor to the threads that it wakes: the holder of a GPU's lock wakes none.
static struct gp_gpu *wakes_freely;
static uint32_t woken;
long syscall(long number, ...)
{
	static long (*next)(long, ...);
	long a[6];
	va_list list;
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (wakes_freely && number == SYS_futex) {
		CHECK(!pthread_mutex_trylock(&wakes_freely->lock));
		pthread_mutex_unlock(&wakes_freely->lock);
		woken++;
	}
	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "syscall");
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// Stand-ins for holds and contexts, which windows call. A hold is released under the lock.
struct gp_context *gp_current_context(void) { return NULL; }
static _Atomic bool *stopped_until;
static _Atomic bool stopped;
static struct gp_context *released[GP_CONTEXTS];
static uint32_t releases;
_Atomic uint64_t gp_loaded[GP_LOADED];
_Atomic uint32_t gp_is_rank;
void gp_rank_kernel(CUfunction kernel) { (void)kernel; }
void gp_hold_release(struct gp_context *c)
{
	released[releases++ % GP_CONTEXTS] = c;
	stopped = true;
	while (stopped_until && !*stopped_until)
		sched_yield();
}
uint64_t gp_hold_look(struct gp_context *c, uint64_t now, bool unfinished)
{
	(void)c, (void)now, (void)unfinished;
	return 0;
}
bool gp_query(struct gp_context *c) { return !c; } // its work is unfinished until a test says otherwise
bool gp_idle(struct gp_context *c, uint64_t word, uint64_t now)
{
	c->idle_since_ns = now;
	return gp_window_change(&c->window, word, GP_FINISHED);
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

enum { MS = 1000000 };

static void is_done(struct gp_context *c, uint64_t at_ns)
{
	c->window = gp_window_after(c->window, GP_FINISHED);
	c->idle_since_ns = at_ns;
	c->seen_activity = gp_activity(c);
}

// Another process wrote over the own line: the process writes it again, whether a window is open or not.
static void mend(void)
{
	struct gp_gpu *g = &gp_gpu[2];
	struct gp_context *c = &gp_context[2];
	struct gp_view *view = map(0);

	g->segment = &view->segment;
	g->slot = SLOT;
	g->lower_peers = 1;
	c->handle = (CUcontext)&view;
	c->gpu = g;
	struct gp_line *line = gp_own_line(g);
	for (int open = 0; open < 2; open++) {
		uint64_t opened_ns = line->window_opened_ns;
		for (int i = 0; i < 4; i++) {
			struct gp_rings was = view->shared;
			line->window_opened_ns = i & 1 ? 0 : 42;
			line->busy = i >> 1;
			bool other = line->window_opened_ns != opened_ns || line->busy != (uint32_t)open;
			gp_gpu_rescind(g);
			CHECK(line->window_opened_ns == opened_ns && line->busy == (uint32_t)open);
			CHECK((view->shared.gate != was.gate) == other &&
			      (view->shared.windows != was.windows) == other && (view->shared.bell != was.bell) == other);
			was = view->shared;
			gp_gpu_rescind(g);
			CHECK(view->shared.gate == was.gate && view->shared.bell == was.bell);
		}
		// The next word in the line does not depend on what another process wrote there.
		line->window_opened_ns = open ? 0 : 42;
		uint64_t counted = view->own.windows;
		if (open)
			gp_window_drop(c);
		else
			gp_window_open(c);
		CHECK(!line->window_opened_ns == open && line->busy == !open && view->own.windows == counted + !open);
		CHECK(view->own.window_ns < 1000ull * 1000 * MS);
		view->own.busy_ns = 1ull << 63; // nor is its own clock
		CHECK(gp_gpu_busy_ns(g) < 1000ull * 1000 * MS);
	}
	line->busy = 0;
	gp_gpu_probe(g, true);
	line->busy = 0;
	gp_gpu_rescind(g);
	CHECK(line->busy);
	munmap(view, sizeof *view);
}

enum { US = 1000 };

// A context beside lower levels, whose windows wait for more work for 20 to 500 us.
static struct gp_context *waits(struct gp_view *view)
{
	struct gp_gpu *g = &gp_gpu[1];
	struct gp_context *c = &gp_context[3];
	g->segment = &view->segment;
	g->lower_peers = 1;
	gp_settings.grace_min_ns = 20 * US;
	gp_settings.grace_max_ns = gp_settings.grace_equals_ns = 500 * US;
	c->gpu = g;
	c->handle = (CUcontext)c;
	return c;
}

// A window waits for work that hints announce until these take the GPU, and no longer: so long after idle, of gaps of so many us.
static uint64_t waits_for_hinted(uint64_t gap_us, uint64_t taken_us)
{
	enum { GAPS = 40 };
	struct gp_view *view = map(0);
	struct gp_context *c = waits(view);

	memset((void *)c->gaps, 0, sizeof c->gaps);
	for (int i = 0; i < 32; i++)
		gp_switch_seen(c->gpu, 190 * US, 190 * US);
	for (int i = 0; i < GAPS; i++) {
		uint64_t idle_since = gp_now_ns() - gap_us * US;
		is_done(c, idle_since);
		CHECK(gp_window_submit(c, false) == idle_since);
		gp_note_gap(c, idle_since, taken_us ? idle_since + taken_us * US : 0);
	}
	c->gaps[14] += GAPS; // 12 ms
	gp_window_open(c);
	is_done(c, 77);
	uint64_t ns = gp_window_watch(c, 77);
	CHECK(gp_window_watch(c, 77 + 500 * US) == 0 && !gp_is_open(c));
	c->handle = NULL;
	munmap(view, sizeof *view);
	return ns / US;
}

static void wait_for_hinted(void)
{
	CHECK(waits_for_hinted(300, 0) == 500);
	CHECK(waits_for_hinted(300, 100) == 128);
	CHECK(waits_for_hinted(10000, 100) == 128);
	CHECK(waits_for_hinted(10000, 9000) == 20); // the window had closed long before
}

// How long a window stays open after its last work depends on what a switch takes: of gaps of which a few are short, the short ones are
// waited for where they would cost a dear switch each.
static void wait_for_more(void)
{
	enum { SHORT = 9, LONG = 14 }; // buckets: 384 us, 12 ms
	struct gp_view *view = map(0);
	struct gp_context *c = waits(view);
	struct gp_gpu *g = c->gpu;

	c->gaps[SHORT] = 10;
	c->gaps[LONG] = 40;
	gp_window_open(c);
	is_done(c, 77);
	for (uint64_t ns = 30 * US; ns < 1000 * US; ns += 200 * US) {
		for (int i = 0; i < 32; i++)
			gp_switch_seen(g, ns, ns);
		CHECK(gp_window_watch(c, 77) == (ns == 30 * US ? 20 * US : 500 * US));
	}

	// Beside an equal that may wait for the GPU it is no longer than the settings say. The watcher gets no word of that, and looks
	// soon enough.
	g->same = 1ull << 9;
	gp_line_of(g->segment, 9)->window_opened_ns = 1;
	gp_settings.grace_equals_ns = 500 * US;
	CHECK(gp_window_watch(c, 77) == 500 * US);
	gp_settings.grace_equals_ns = 400 * US;
	CHECK(gp_window_watch(c, 77) == 50 * US); // 400, but looks again
	gp_settings.grace_equals_ns = 30 * US;    // no pause is as short: it need not wait at all
	CHECK(gp_window_watch(c, 77) == 20 * US);
	gp_settings.grace_equals_ns = 10 * US; // below grace_min_us
	CHECK(gp_window_watch(c, 77) == 10 * US);
	gp_line_of(g->segment, 9)->window_opened_ns = 0;
	CHECK(gp_window_watch(c, 77) == 50 * US && gp_is_open(c)); // 500, but looks again
	gp_line_of(g->segment, 8)->window_opened_ns = 1;           // is no equal
	CHECK(gp_window_watch(c, 77) == 50 * US);
	gp_line_of(g->segment, 9)->window_opened_ns = 1;
	g->lower_peers = 0; // no process is kept off the GPU for longer
	CHECK(gp_window_watch(c, 77) == 2000 * US);
	g->lower_peers = 1;
	CHECK(gp_window_watch(c, 77 + 11 * US) == 0 && !gp_is_open(c));
	g->same = 0;
	c->handle = NULL;
	munmap(view, sizeof *view);
}

// Where no lower levels are left, holds end, in each context of the GPU. A window that is taken back has lasted until then.
static void rescind(void)
{
	enum { GPU = 4 };
	struct gp_gpu *g = &gp_gpu[GPU];
	struct gp_view *view = map(0);
	struct gp_context *first = &gp_context[0], *last = &gp_context[GP_CONTEXTS - 1], *other = &gp_context[7];

	g->segment = &view->segment;
	g->lower_peers = 1;
	first->gpu = last->gpu = g;
	other->gpu = &gp_gpu[GPU + 1];
	first->handle = last->handle = other->handle = (CUcontext)g;
	gp_window_open(first);
	CHECK(gp_own_line(g)->window_opened_ns);
	releases = 0;
	gp_gpu_rescind(g);
	CHECK(!releases && gp_own_line(g)->window_opened_ns && !view->own.window_ns);
	g->lower_peers = 0;
	gp_gpu_rescind(g);
	CHECK(releases == 2 && released[0] == first && released[1] == last);
	CHECK(!gp_own_line(g)->window_opened_ns && view->own.window_ns &&
	      view->own.times.windows.sum_ns == view->own.window_ns);
	g->lower_peers = 1;
	gp_gpu_rescind(g);
	CHECK(gp_own_line(g)->window_opened_ns); // they came back, and work is not done
	gp_gpu_give_way(g, true);
	gp_gpu_give_way(g, true);
	CHECK(!gp_own_line(g)->window_opened_ns);
	gp_gpu_give_way(g, false);
	CHECK(!gp_own_line(g)->window_opened_ns);
	gp_gpu_give_way(g, false);
	CHECK(gp_own_line(g)->window_opened_ns && gp_own_line(g)->busy);
	gp_membership = GP_LEAVING; // its work is to end yet
	gp_gpu_rescind(g);
	CHECK(gp_own_line(g)->window_opened_ns && gp_own_line(g)->busy);
	gp_membership = GP_LOCKED;
	gp_gpu_rescind(g);
	CHECK(!gp_own_line(g)->window_opened_ns && !gp_own_line(g)->busy);
	gp_window_open(last); // by a thread that waits in the driver then
	gp_gpu_probe(g, true);
	CHECK(!gp_own_line(g)->window_opened_ns && !gp_own_line(g)->busy);
	gp_gpu_probe(g, false);
	gp_window_drop(last);
	gp_membership = GP_JOINED;
	gp_gpu_rescind(g);
	CHECK(gp_own_line(g)->window_opened_ns && gp_own_line(g)->busy);
	gp_window_drop(first);
	CHECK(!gp_own_line(g)->window_opened_ns && g->open_contexts == 0);
	first->handle = last->handle = other->handle = NULL;
	munmap(view, sizeof *view);
}

static _Atomic int waiter;

static void *opens(void *context)
{
	waiter = (int)syscall(SYS_gettid);
	gp_window_open(context);
	return NULL;
}

static bool sleeps(int thread)
{
	char path[64], state = 0;
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
	FILE *f = fopen(path, "r");
	CHECK(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
	fclose(f);
	return state == 'S';
}

static void *closes(void *context)
{
	CHECK(gp_window_watch(context, 77 + 1000ull * MS) == 0);
	return NULL;
}

// A thread that is to open a window, while another one has lost its processor as it closes one, leaves it that processor.
static void wait_asleep(void)
{
	struct gp_gpu *g = &gp_gpu[3];
	struct gp_context *c = &gp_context[4], *second = &gp_context[5];
	struct gp_view *view = map(0);
	_Atomic bool goes_on = false;
	pthread_t closer, opener;

	g->segment = &view->segment;
	g->lower_peers = g->stoppable = g->between = 1;
	c->gpu = second->gpu = g;
	c->handle = second->handle = (CUcontext)c;
	gp_window_open(c);
	is_done(c, 77);
	stopped = false;
	stopped_until = &goes_on;
	CHECK(!pthread_create(&closer, NULL, closes, c));
	while (!stopped)
		sched_yield();
	CHECK(!pthread_create(&opener, NULL, opens, second));
	while (!waiter)
		sched_yield();
	for (uint64_t end = gp_now_ns() + 20ull * 1000 * MS; !sleeps(waiter); sched_yield())
		CHECK(gp_now_ns() < end); // it spins
	goes_on = true;
	CHECK(!pthread_join(closer, NULL) && !pthread_join(opener, NULL));
	CHECK(!gp_is_open(c) && gp_is_open(second) && g->open_contexts == 1);
	stopped_until = NULL;

	wakes_freely = g;
	is_done(second, 77);
	CHECK(gp_window_watch(second, 77 + 1000ull * MS) == 0 && woken == 3);
	gp_window_wake(g, gp_window_open(second));
	gp_gpu_give_way(g, true);
	gp_gpu_give_way(g, false);
	gp_own_line(g)->busy = 7;
	gp_gpu_rescind(g);
	gp_window_drop(second);
	wakes_freely = NULL;
	CHECK(woken > 12);
	c->handle = second->handle = NULL;
	munmap(view, sizeof *view);
}

int main(void)
{
	wait_asleep();
	mend();
	rescind();
	wait_for_more();
	wait_for_hinted();
	struct gp_gpu *g = &gp_gpu[0];
	struct gp_view *view = map(1);

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
