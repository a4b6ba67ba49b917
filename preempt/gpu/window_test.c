// window_test.c - with preempt/gpu/window.c preempt/gpu/objective.c preempt/gpu/steps.c preempt/gpu/slots.c preempt/gpu/law.c preempt/gpu/switch.c preempt/process/process.c.
//
// Memory that takes the place of other memory leaves its own place at once to another mapping. Also how many SMs windows leave, and how
// their width is learnt.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "preempt/gpu/width.h"
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

// A stand-in for width.c: the level that the next window leaves, and the arguments of the latest calls.
static uint32_t level, opened, closed;
static uint64_t key_opened, busy_closed, operations_closed;
static bool judged_closed;
uint32_t gp_width_opens(struct gp_widths *w, uint64_t key)
{
	w->open = 1;
	opened++;
	key_opened = key;
	return level;
}
// The arguments of the latest look at an open window, and the answer.
static uint32_t looks;
static uint64_t busy_looked, operations_looked;
static bool falls;
bool gp_width_falls(struct gp_widths *w, uint64_t busy_ns, uint64_t operations)
{
	CHECK(w->open);
	looks++;
	busy_looked = busy_ns;
	operations_looked = operations;
	return falls;
}
void gp_width_closes(struct gp_widths *w, uint64_t busy_ns, uint64_t operations, bool judged)
{
	if (!w->open)
		return;
	w->open = 0;
	closed++;
	busy_closed = busy_ns;
	operations_closed = operations;
	judged_closed = judged;
	w->kinds = 3;
	w->too_wide = 4;
}
static enum gp_verdict says; // of the next window
enum gp_verdict gp_width_verdict(const struct gp_widths *w, uint64_t busy_ns, uint64_t operations)
{
	(void)busy_ns, (void)operations;
	return w->open ? says : GP_UNJUDGED;
}
static uint32_t excused;
void gp_width_excuse(struct gp_widths *w)
{
	CHECK(!w->open);
	excused++;
}
uint32_t gp_width_sms(uint32_t of, uint32_t sms) { return of * sms; }

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

// Lower levels may have as many SMs as the least generous open window leaves; closed windows have no say.
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
	CHECK(gp_windows_leave(s, 1ull << 63) == UINT32_MAX); // for any words of a peer
	gp_line_of(s, 0)->window_opened_ns = 1;               // publishes none
	CHECK(gp_windows_leave(s, ~0ull) == 0 && gp_windows_leave(s, ~1ull) == 16);
	CHECK(gp_windows_leave(s, 2) == UINT32_MAX);
	munmap(view, sizeof *view);
}

enum { SMS = 10, MS = 1000000 };

static uint64_t key_of(struct gp_operation o)
{
	struct gp_context *c = &gp_context[0];
	gp_window_open(c, &o);
	CHECK(gp_own_line(c->gpu)->window_opened_ns);
	gp_window_drop(c);
	return key_opened;
}

static void is_done(struct gp_context *c, uint64_t at_ns)
{
	c->window = gp_window_after(c->window, GP_FINISHED);
	c->idle_since_ns = at_ns;
	c->seen_activity = gp_activity(c);
}

// The watcher finds that the work of a context had finished so long after its GPU's window opened.
static void finishes(struct gp_context *c, uint64_t opened_ns, uint64_t after)
{
	is_done(c, opened_ns + after);
	CHECK(gp_window_watch(c, c->idle_since_ns) == 0 && !gp_is_open(c));
}

// An operation is submitted to a context that has been idle for so long.
static void submit(struct gp_context *c, uint64_t idle_ns)
{
	is_done(c, gp_now_ns() - idle_ns);
	gp_note_gap(c, gp_window_submit(c, false), 0);
	CHECK(!gp_is_idle(c));
}

static void submit_more(struct gp_context *c, int operations)
{
	while (operations--)
		CHECK(!gp_window_submit(c, false));
}

// A window is judged by the time in which it had work, and by its operations.
static void work(struct gp_context *c, struct gp_context *second, const struct gp_operation *first)
{
	const uint64_t lasted = 1000000ull * MS; // more than the test
	struct gp_line *line = gp_own_line(c->gpu);

	// Gaps in the window have no work. That before it is none of its own.
	submit(c, 5 * MS);
	gp_window_open(c, first);
	uint64_t before = c->gaps_ns;
	submit(c, 3 * MS);
	submit_more(c, 4);
	submit(c, 2 * MS);
	uint64_t gaps = c->gaps_ns - before;
	CHECK(gaps >= 5 * MS);
	finishes(c, line->window_opened_ns, lasted);
	CHECK(busy_closed == lasted - gaps && operations_closed == 7 && judged_closed);
	submit(c, 0);
	gp_window_open(c, first);
	finishes(c, line->window_opened_ns, 2 * MS);
	CHECK(busy_closed == 2 * MS && operations_closed == 1 && judged_closed);

	// Of two threads that end a gap one counts it. A gap that was lent is none.
	gp_window_open(c, first);
	before = c->gaps_ns;
	uint64_t mark = gp_now_ns() - 3 * MS;
	is_done(c, mark);
	CHECK(gp_window_submit(c, false) == mark);
	gaps = c->gaps_ns - before;
	CHECK(gaps >= 3 * MS);
	CHECK(!gp_window_submit(c, false) && c->gaps_ns - before == gaps);
	is_done(c, mark);
	CHECK(!gp_window_submit(c, true) && c->gaps_ns - before == gaps && !gp_is_idle(c));
	finishes(c, line->window_opened_ns, lasted);
	CHECK(busy_closed == lasted - gaps && judged_closed);

	// A gap longer than the window was before it.
	gp_window_open(c, first);
	submit(c, 3 * MS);
	finishes(c, line->window_opened_ns, 2 * MS);
	CHECK(!judged_closed);

	// Where two contexts have work, a gap of one is none of the window, and operations are those of both.
	for (int swapped = 0; swapped < 2; swapped++) {
		submit(c, 0);
		gp_window_open(c, first);
		uint64_t opened_ns = line->window_opened_ns;
		submit(second, 0);
		gp_window_open(second, first);
		submit(c, 3 * MS);
		submit(second, 4 * MS);
		finishes(swapped ? second : c, opened_ns, lasted);
		finishes(swapped ? c : second, opened_ns, lasted);
		CHECK(busy_closed == lasted && operations_closed == 4 && judged_closed);
	}
}

// The watcher looks at a window that leaves SMs, while it has work. If it is slow, nothing is left any more.
static void fall(struct gp_context *c, struct gp_context *second, const struct gp_operation *first)
{
	struct gp_line *line = gp_own_line(c->gpu);

	for (level = 0; level < 2; level++) {
		looks = 0;
		submit(c, 0);
		gp_window_open(c, first);
		uint64_t opened_ns = line->window_opened_ns, before = c->gaps_ns;
		submit_more(c, 2);
		CHECK(gp_window_watch(c, opened_ns) && !looks); // a look that began before it opened
		CHECK(gp_window_watch(c, opened_ns + 3 * MS) && looks == level && line->leaves == level * SMS);
		CHECK(!level || (busy_looked == 3 * MS && operations_looked == 3));
		is_done(c, opened_ns + 4 * MS);
		gp_settings.grace_min_ns = gp_settings.grace_max_ns = 1 * MS;
		CHECK(gp_window_watch(c, opened_ns + 4 * MS) && looks == level); // it has no work
		gp_settings.grace_min_ns = gp_settings.grace_max_ns = 0;
		submit(c, 1 * MS);
		uint64_t gap = c->gaps_ns - before;
		c->hint.until_ns = UINT64_MAX;
		CHECK(gp_window_watch(c, opened_ns + gap + 5 * MS) && looks == level); // it is to come
		c->hint.until_ns = 0;
		falls = true;
		CHECK(gp_window_watch(c, opened_ns + gap + 5 * MS) && looks == 2 * level);
		CHECK(!level || (busy_looked == 5 * MS && operations_looked == 4));
		CHECK(line->leaves == 0 && line->window_opened_ns == opened_ns);
		CHECK(gp_window_watch(c, opened_ns + gap + 6 * MS) && looks == 2 * level && line->leaves == 0);
		finishes(c, opened_ns, 1000000ull * MS);
		CHECK(closed && judged_closed);

		// Of two contexts nothing is known before both have no work.
		submit(c, 0);
		submit(second, 0);
		gp_window_open(c, first);
		gp_window_open(second, first);
		opened_ns = line->window_opened_ns;
		looks = 0;
		CHECK(gp_window_watch(c, opened_ns + 3 * MS) && !looks && line->leaves == level * SMS);
		finishes(c, opened_ns, 4 * MS);
		CHECK(gp_window_watch(second, opened_ns + 5 * MS) && !looks);
		finishes(second, opened_ns, 6 * MS);
		falls = false;
	}
}

// A window that a copy opens leaves nothing, and is of no kind, before it is known what follows.
static void follow(struct gp_context *c, struct gp_context *second, const struct gp_operation *fill,
		   const struct gp_operation *kernel)
{
	struct gp_gpu *g = c->gpu;
	struct gp_line *line = gp_own_line(g);
	struct gp_operation copies[] = {{.work = GP_COPY, .memory.width = 100}, {.work = GP_COPY, .memory.width = 200}};
	struct gp_operation then[] = {*kernel, *kernel, {.work = GP_GRAPH, .graph = (CUgraphExec)c}};
	const struct gp_rings *rings = &gp_view_of(g->segment)->shared;
	uint64_t keys[2][3];

	then[1].launch.grid[0]++;
	g->stoppable = 1;
	level = 2;
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 3; j++)
			for (int again = 0; again < 2; again++) {
				submit(c, 0);
				opened = closed = 0;
				gp_window_open(c, &copies[i]);
				uint64_t opened_ns = line->window_opened_ns;
				uint64_t leaving = gp_own_slot(g)->width.leaving;
				uint32_t rung = rings->windows;
				CHECK(gp_window_watch(c, opened_ns + 1 * MS) && !opened && !line->leaves);
				submit_more(c, 1);
				gp_window_follow(c, &then[j]);
				CHECK(!opened && !line->leaves); // the launch path leaves that to the watcher
				CHECK(gp_window_watch(c, opened_ns + 2 * MS) && opened == 1);
				CHECK(line->leaves == 2 * SMS && rings->windows != rung);
				CHECK(gp_own_slot(g)->width.leaving == leaving + 1);
				CHECK(!again || key_opened == keys[i][j]);
				keys[i][j] = key_opened;
				submit_more(c, 1);
				gp_window_follow(c, &then[(j + 1) % 3]); // another window's, too late
				CHECK(gp_window_watch(c, opened_ns + 3 * MS) && opened == 1);
				// It counts from the copy on.
				finishes(c, opened_ns, 9 * MS);
				CHECK(closed == 1 && busy_closed == 9 * MS && operations_closed == 3 && judged_closed);
			}
	for (int i = 0; i < 6; i++)
		for (int j = 0; j < i; j++)
			CHECK(keys[i / 3][i % 3] != keys[j / 3][j % 3]);

	// The window leaves nothing, and teaches nothing, in five cases. No operation followed; it followed in another window, or in
	// another context; another process needs room by then; the window is withdrawn.
	enum { NOTHING, BEFORE, ELSEWHERE, IN_THE_WAY, WITHDRAWN, CASES };
	for (int i = 0; i < CASES; i++) {
		submit(c, 0);
		opened = closed = 0;
		if (i == BEFORE)
			gp_window_follow(c, kernel);
		gp_window_open(c, &copies[0]);
		uint64_t opened_ns = line->window_opened_ns;
		if (i == ELSEWHERE) {
			submit(second, 0);
			gp_window_open(second, &copies[0]);
			gp_window_follow(second, kernel);
			CHECK(gp_window_watch(second, opened_ns + 1 * MS));
			finishes(second, opened_ns, 1 * MS);
		} else if (i >= IN_THE_WAY) {
			gp_window_follow(c, kernel);
		}
		gp_line_of(g->segment, 50)->window_opened_ns = i == IN_THE_WAY;
		if (i == WITHDRAWN)
			gp_gpu_give_way(g, true);
		CHECK(gp_window_watch(c, opened_ns + 1 * MS) && !opened && !line->leaves);
		if (i == WITHDRAWN)
			gp_gpu_give_way(g, false);
		gp_line_of(g->segment, 50)->window_opened_ns = 0;
		CHECK(gp_window_watch(c, opened_ns + 2 * MS) && !opened && !line->leaves);
		finishes(c, opened_ns, 3 * MS);
		CHECK(!closed);
	}

	// The next window leaves as much as its own kind, though another operation follows.
	gp_window_open(c, &copies[0]);
	finishes(c, line->window_opened_ns, 3 * MS);
	level = 1;
	submit(c, 0);
	gp_window_open(c, fill);
	CHECK(opened == 1 && line->leaves == SMS);
	gp_window_follow(c, kernel);
	CHECK(gp_window_watch(c, line->window_opened_ns + 1 * MS) && opened == 1 && line->leaves == SMS);
	finishes(c, line->window_opened_ns, 3 * MS);
	CHECK(closed == 1);
}

// A window says whether it was slow before it closes. A process beside it takes the blame before the next one opens, or says that nothing
// ran.
static void blame(struct gp_context *c, const struct gp_operation *first)
{
	struct gp_segment *s = c->gpu->segment;
	struct gp_line *line = gp_own_line(c->gpu), *beside = gp_line_of(s, 40), *stopped = gp_line_of(s, 41);
	uint64_t opened_ns = 0;

	for (says = GP_UNJUDGED; says <= GP_SLOW; says++) {
		uint64_t before = line->judged_ns;
		submit(c, 0);
		gp_window_open(c, first);
		opened_ns = line->window_opened_ns;
		CHECK(line->judged_ns == before);
		finishes(c, opened_ns, 5 * MS);
		CHECK(judged_closed);
		CHECK(line->judged_ns == (says ? gp_judged(opened_ns, says == GP_SLOW) : before));
	}
	struct {
		uint64_t beside, stopped;
		uint32_t excused;
	} answers[] = {{0, opened_ns, 0}, {opened_ns + 1, 0, 0}, {opened_ns, 0, 1}, {opened_ns, 0, 1}};
	says = GP_UNJUDGED;
	for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
		beside->excuses_ns = answers[i].beside;
		stopped->excuses_ns = answers[i].stopped;
		submit(c, 0);
		gp_window_open(c, first);
		CHECK(excused == answers[i].excused);
		finishes(c, line->window_opened_ns, 5 * MS);
	}
	for (says = GP_GOOD; says <= GP_SLOW; says++) { // a slow one suffered from something
		submit(c, 0);
		gp_window_open(c, first);
		beside->excuses_ns = line->window_opened_ns;
		finishes(c, line->window_opened_ns, 5 * MS);
		CHECK(judged_closed == (says == GP_SLOW));
	}
	says = GP_UNJUDGED;
}

static void learn(void)
{
	struct gp_gpu *g = &gp_gpu[1];
	struct gp_context *c = &gp_context[0], *second = &gp_context[1];
	struct gp_view *view = map(0);
	struct gp_segment *s = &view->segment;
	struct gp_operation fill = {.work = GP_MEMSET, .memory.width = 100};

	g->slot = SLOT;
	g->sms = SMS;
	g->lower_peers = 2;
	g->lower = 3ull << 40;
	g->going_on = 1ull << 40;
	g->same = 1ull << 50;
	g->higher = 1ull << 51;
	c->gpu = second->gpu = g;
	c->handle = second->handle = (CUcontext)c;
	gp_window_open(c, &fill); // the agent has not attached the segment
	g->segment = s;
	gp_gpu_attached(g);
	struct gp_line *line = gp_own_line(g);
	CHECK(line->window_opened_ns && !line->leaves && !opened);
	gp_window_drop(c);
	CHECK(!closed);

	// It leaves what is learnt. It reports what it suffered if a process was there to use what it left.
	static const struct {
		const char *name;
		bool goes_on, stops, same_before, higher_before, same_after, nothing_known;
		bool learns, judged;
	} cases[] = {
		{"beside one that goes on", .goes_on = true, .learns = true, .judged = true},
		{"alone", .learns = true},
		{"beside one that stops", .stops = true, .learns = true},
		{"beside its like", .goes_on = true, .same_before = true},
		{"beside a better one", .goes_on = true, .higher_before = true},
		{"beside its like that came later", .goes_on = true, .same_after = true, .learns = true},
		{"hinted at", .goes_on = true, .nothing_known = true},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (level = 0; level < 3; level++) {
			uint64_t leaving = view->own.width.leaving;
			opened = closed = 0;
			gp_line_of(s, 40)->busy = cases[i].goes_on;
			gp_line_of(s, 41)->busy = cases[i].stops;
			gp_line_of(s, 50)->window_opened_ns = cases[i].same_before;
			gp_line_of(s, 51)->window_opened_ns = cases[i].higher_before;
			gp_window_open(c, cases[i].nothing_known ? NULL : &fill);
			uint32_t leaves = cases[i].learns ? level * SMS : 0;
			CHECK(line->window_opened_ns && line->leaves == leaves && opened == cases[i].learns);
			CHECK(view->own.width.leaving == leaving + (leaves > 0));
			gp_line_of(s, 50)->window_opened_ns = cases[i].same_after;
			finishes(c, line->window_opened_ns, 5 * MS);
			CHECK(closed == cases[i].learns && !line->window_opened_ns);
			CHECK(!closed || (busy_closed == 5 * MS && judged_closed == cases[i].judged));
		}
	CHECK(view->own.width.kinds == 3 && view->own.width.too_wide == 4);
	gp_line_of(s, 50)->window_opened_ns = 0;
	gp_line_of(s, 40)->busy = 1;

	// A window of two contexts is over when the work of both has finished.
	for (int swapped = 0; swapped < 2; swapped++) {
		gp_window_open(c, &fill);
		uint64_t began = line->window_opened_ns;
		closed = 0;
		gp_window_open(second, &fill);
		finishes(swapped ? second : c, began, 7 * MS);
		CHECK(!closed);
		finishes(swapped ? c : second, began, 6 * MS);
		CHECK(closed == 1 && busy_closed == 7 * MS && judged_closed);
	}
	gp_window_open(c, &fill);
	gp_window_open(second, &fill);
	uint64_t began = line->window_opened_ns;
	gp_window_drop(c); // ends with work that may be unfinished
	finishes(second, began, 6 * MS);
	CHECK(!judged_closed);

	work(c, second, &fill);
	fall(c, second, &fill);
	blame(c, &fill);

	// A window that is taken back tells nothing, and leaves nothing when it is there again.
	level = 2;
	gp_window_open(c, &fill);
	CHECK(line->leaves == 2 * SMS);
	closed = 0;
	gp_gpu_give_way(g, true);
	CHECK(closed == 1 && !judged_closed);
	gp_gpu_give_way(g, false);
	CHECK(line->window_opened_ns && line->leaves == 0);
	finishes(c, line->window_opened_ns, 6 * MS);
	CHECK(closed == 1);

	// A window teaches nothing where no process goes on beside it, though its kind is known.
	g->going_on = opened = 0;
	gp_window_open(c, &fill);
	CHECK(line->window_opened_ns && !line->leaves && !opened);
	gp_window_drop(c);
	g->going_on = 1ull << 40;

	// Requests that begin alike are of one kind.
	struct gp_operation kernel = {.work = GP_KERNEL,
				      .launch = {.function = (CUfunction)c, .grid = {4, 5, 6}, .block = {7, 8, 9}}};
	struct gp_operation kinds[11] = {kernel, kernel, kernel, kernel, kernel, fill, fill, fill};
	kinds[1].launch.function = (CUfunction)second;
	kinds[2].launch.grid[0] = kinds[3].launch.grid[1] = kinds[4].launch.grid[2] = 10;
	kinds[6].memory.width = 101;
	kinds[7].memory.height = 2;
	kinds[8] = (struct gp_operation){.work = GP_GRAPH, .graph = (CUgraphExec)c};
	kinds[9] = (struct gp_operation){.work = GP_GRAPH, .graph = (CUgraphExec)second};
	kinds[10] = (struct gp_operation){.work = GP_OTHER};
	for (int i = 0; i < 11; i++) {
		uint64_t key = key_of(kinds[i]);
		CHECK(key == key_of(kinds[i]));
		for (int j = 0; j < i; j++)
			CHECK(key != key_of(kinds[j]));
	}
	kinds[0].launch.parameters = (void **)c;
	kinds[0].stream = (CUstream)c;
	CHECK(key_of(kinds[0]) == key_of(kernel));
	kinds[5].memory.to = kinds[5].memory.from = 4096;
	CHECK(key_of(kinds[5]) == key_of(fill));
	follow(c, second, &fill, &kernel);
	c->handle = second->handle = NULL;
}

// Another process wrote over the own line: the process writes it again, whether a window is open or not.
static void mend(void)
{
	struct gp_gpu *g = &gp_gpu[2];
	struct gp_context *c = &gp_context[2];
	struct gp_view *view = map(0);
	const struct gp_operation first = {.work = GP_OTHER};

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
			line->leaves = 7;
			gp_gpu_rescind(g);
			CHECK(line->window_opened_ns == opened_ns && line->busy == (uint32_t)open && !line->leaves);
			CHECK(view->shared.gate != was.gate && view->shared.windows != was.windows &&
			      view->shared.bell != was.bell);
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
			gp_window_open(c, &first);
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
		uint64_t idle_since = gp_now_ns() - gap_us * US, before = c->gaps_ns;
		is_done(c, idle_since);
		CHECK(gp_window_submit(c, false) == idle_since);
		gp_note_gap(c, idle_since, taken_us ? idle_since + taken_us * US : 0);
		CHECK(c->gaps_ns - before >= gap_us * US); // it had no work for as long
	}
	c->gaps[14] += GAPS; // 12 ms
	gp_window_open(c, NULL);
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
	gp_window_open(c, NULL);
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
	const struct gp_operation operation = {.work = GP_OTHER};

	g->segment = &view->segment;
	g->lower_peers = 1;
	first->gpu = last->gpu = g;
	other->gpu = &gp_gpu[GPU + 1];
	first->handle = last->handle = other->handle = (CUcontext)g;
	gp_window_open(first, &operation);
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
	gp_window_open(last, &operation); // by a thread that waits in the driver then
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
	gp_window_open(context, NULL);
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
	gp_window_open(c, NULL);
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
	gp_window_wake(g, gp_window_open(second, NULL));
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
	leave();
	learn();
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
