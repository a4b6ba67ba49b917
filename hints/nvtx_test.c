// nvtx_test.c - with hints/nvtx.c hints/source.c preempt/process/thread.c.
//
// Calls as NVTX's headers make them: which ends of ranges are steps. Another tool is called, and answers, as if it were alone. Ends well or says
// what is wrong.
#define _GNU_SOURCE
#include "hints/nvtx.h"
#include "hints/source.h"
#include "test/units/check.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>

// Stand in for other files.
uint64_t gp_now_ns(void) { return 1; }
void gp_nap(uint64_t ns) {}
void gp_thread_ends(void) {}
static _Atomic int steps;
int gpreempt_step(void) { return ++steps, 0; }

enum { CORE = 1, CORE2 = 5, IDS = 16, UNSUPPORTED = 99, ASCII = 1, UNICODE = 2, REGISTERED = 3, NO_TRACKING = -2 };

struct attributes { // nvtxEventAttributes_v2
	uint16_t version, size;
	uint32_t rest[5];
	uint64_t payload;
	int32_t kind;
	const void *message;
};

// A program's part of NVTX: pointers to functions, in the order of nvtxTypes.h.
struct program { void *core[IDS], *core2[IDS]; };
static struct program *initialised; // the one that a tool is asked to attach to
static bool lacks_core2;

static int table(int module, void ****out, unsigned *size)
{
	static void **places[2][IDS];
	if (module != CORE && (module != CORE2 || lacks_core2))
		return 0;
	for (int i = 1; i < IDS; i++)
		places[module == CORE2][i] = module == CORE ? &initialised->core[i] : &initialised->core2[i];
	*out = places[module == CORE2];
	*size = IDS;
	return 1;
}

static const void *export_table(uint32_t id)
{
	static const struct {
		size_t size;
		int (*get)(int, void ****, unsigned *);
	} callbacks = {sizeof callbacks, table};
	return id == 1 ? &callbacks : NULL;
}

static void unattached(void) { CHECK(!"called: a tool's function has been mistaken for NVTX's own"); }

static int initialise(struct program *p, int (*tool)(const void *(*)(uint32_t)))
{
	for (int i = 0; i < IDS; i++)
		p->core[i] = p->core2[i] = (void *)unattached;
	initialised = p;
	int is = tool(export_table);
	for (int i = 0; i < IDS; i++) { // as nvtxSetInitFunctionsToNoops does
		p->core[i] = p->core[i] == (void *)unattached ? NULL : p->core[i];
		p->core2[i] = p->core2[i] == (void *)unattached ? NULL : p->core2[i];
	}
	return is;
}

int InitializeInjectionNvtx2(const void *(*)(uint32_t));

#define CALL(p, table, id, type) ((type)(p)->table[id])
static uint64_t start(struct program *p, const char *name)
{
	return CALL(p, core, 5, uint64_t (*)(const char *))(name);
}
static uint64_t start_wide(struct program *p, const wchar_t *name)
{
	return CALL(p, core, 6, uint64_t (*)(const wchar_t *))(name);
}
static uint64_t start_with(struct program *p, const void *a) { return CALL(p, core, 4, uint64_t (*)(const void *))(a); }
static void end(struct program *p, uint64_t id) { CALL(p, core, 7, void (*)(uint64_t))(id); }
static int push(struct program *p, const char *name) { return CALL(p, core, 9, int (*)(const char *))(name); }
static int push_wide(struct program *p, const wchar_t *name)
{
	return CALL(p, core, 10, int (*)(const wchar_t *))(name);
}
static int push_with(struct program *p, const void *a) { return CALL(p, core, 8, int (*)(const void *))(a); }
static int pop(struct program *p) { return CALL(p, core, 11, int (*)(void))(); }
static uint64_t domain_start(struct program *p, void *domain, const void *a)
{
	return CALL(p, core2, 2, uint64_t (*)(void *, const void *))(domain, a);
}
static void domain_end(struct program *p, void *domain, uint64_t id)
{
	CALL(p, core2, 3, void (*)(void *, uint64_t))(domain, id);
}
static int domain_push(struct program *p, void *domain, const void *a)
{
	return CALL(p, core2, 4, int (*)(void *, const void *))(domain, a);
}
static int domain_pop(struct program *p, void *domain) { return CALL(p, core2, 5, int (*)(void *))(domain); }
static void *string(struct program *p, const char *text)
{
	return CALL(p, core2, 10, void *(*)(void *, const char *))(NULL, text);
}
static void *string_wide(struct program *p, const wchar_t *text)
{
	return CALL(p, core2, 11, void *(*)(void *, const wchar_t *))(NULL, text);
}

static struct attributes with(int kind, const void *message)
{
	return (struct attributes){.version = 3, .size = sizeof(struct attributes), .kind = kind, .message = message};
}

// So many steps ended since the last call.
static bool ended(int n)
{
	int were = steps;
	steps = 0;
	return were == n;
}

static void named_ends(struct program *p)
{
	push(p, "step");
	CHECK(ended(0));
	pop(p);
	CHECK(ended(1));
	push_wide(p, L"step");
	CHECK(ended(0));
	pop(p);
	CHECK(ended(1));
	push(p, "steps"), pop(p), push(p, "ste"), pop(p), push(p, ""), pop(p), push(p, NULL), pop(p),
		push_wide(p, NULL), pop(p);
	push_wide(p, L"stepp"), pop(p);
	CHECK(ended(0));

	struct attributes kinds[] = {with(ASCII, "step"), with(UNICODE, L"step"), with(REGISTERED, string(p, "step")),
				     with(REGISTERED, string_wide(p, L"step"))};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		push_with(p, &kinds[i]);
		CHECK(ended(0));
		pop(p);
		CHECK(ended(1));
		domain_push(p, p, &kinds[i]);
		CHECK(ended(0));
		domain_pop(p, p);
		CHECK(ended(1));
		end(p, start_with(p, &kinds[i]));
		CHECK(ended(1));
		domain_end(p, p, domain_start(p, p, &kinds[i]));
		CHECK(ended(1));
	}
	uint64_t first = start(p, "step"), second = start_wide(p, L"step"), other = start(p, "other");
	CHECK(first != second && first && second);
	end(p, other), end(p, 0);
	CHECK(ended(0));
	end(p, first);
	CHECK(ended(1));
	end(p, first);
	CHECK(ended(0)); // once
	end(p, second);
	CHECK(ended(1));
}

// A range is known by its place among those that its thread has open in its domain.
static void nest(struct program *p)
{
	struct attributes step = with(ASCII, "step"), other = with(ASCII, "other");
	push(p, "other"), push(p, "step"), push(p, "other"), pop(p);
	CHECK(ended(0));
	pop(p);
	CHECK(ended(1));
	pop(p);
	CHECK(ended(0));
	push(p, "step"), push(p, "step"), pop(p);
	CHECK(ended(0));
	pop(p);
	CHECK(ended(1)); // a step within a step is part of it
	pop(p), pop(p);
	CHECK(ended(0)); // more than were pushed
	push(p, "step");
	CHECK(ended(0));
	pop(p);
	CHECK(ended(1));

	void *domain = p;
	push(p, "step"), domain_push(p, domain, &other), domain_pop(p, domain), domain_pop(p, domain);
	CHECK(ended(0));
	domain_push(p, domain, &step), pop(p);
	CHECK(ended(1));
	pop(p);
	CHECK(ended(0));
	domain_pop(p, domain);
	CHECK(ended(1));
	domain_push(p, NULL, &step), pop(p);
	CHECK(ended(1)); // NULL is the domain of those without

	char domains[6]; // two more than a thread keeps
	for (int i = 0; i < 6; i++)
		domain_push(p, &domains[i], &step);
	for (int i = 0; i < 6; i++)
		domain_pop(p, &domains[i]);
	CHECK(ended(4));
	domain_push(p, domain, &step), domain_pop(p, domain);
	CHECK(ended(1));
}

static void wrong(struct program *p)
{
	static char longest[1 << 16];
	static wchar_t wide[1 << 16];
	memset(longest, 's', sizeof longest - 1);
	wmemset(wide, L's', sizeof wide / sizeof *wide - 1);
	struct attributes of_before = with(ASCII, "step"), odd = with(UNSUPPORTED, "step"),
			  unregistered = with(REGISTERED, "step"),
			  none[] = {with(ASCII, NULL), with(UNICODE, NULL), with(REGISTERED, NULL)};
	of_before.size -= 8; // version 1 has no message there
	push_with(p, NULL), pop(p), push_with(p, &of_before), pop(p), push_with(p, &odd), pop(p),
		push_with(p, &unregistered), pop(p);
	for (int i = 0; i < 3; i++)
		push_with(p, &none[i]), pop(p);
	push(p, longest), pop(p), push_wide(p, wide), pop(p), push_wide(p, L"\xe9tape"), pop(p),
		push_wide(p, L"\xffffff73tep"), pop(p);
	(void)string(p, longest), (void)string_wide(p, wide), (void)string(p, NULL), (void)string_wide(p, NULL),
		(void)string(p, "");
	for (uint64_t id = 0; id < 1000; id++)
		end(p, id << 32);
	CHECK(ended(0));
	uint64_t last = 0;
	for (int i = 0; i < 1000; i++) // never ended
		last = start(p, "step");
	end(p, last);
	CHECK(ended(1));
}

// A thread ends what another one has started, but pops only what is its own.
static void *on_another_thread(void *program)
{
	struct program *p = program;
	pop(p);
	for (int i = 0; i < 1000; i++)
		push(p, "step"), pop(p), end(p, start(p, "step"));
	return NULL;
}

static void threads(struct program *p)
{
	pthread_t thread[4];
	push(p, "step");
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&thread[i], NULL, on_another_thread, p));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(thread[i], NULL));
	CHECK(ended(8000));
	pop(p);
	CHECK(ended(1));
}

// Another tool, which keeps a depth and gives ids and handles of its own.
static int tools_depth;
static uint64_t tools_id = 1ull << 40, tools_ended;
static const void *tools_last;
static int tool_push(const char *name) { return tools_last = name, tools_depth++; }
static int tool_push_wide(const wchar_t *name) { return tools_last = name, tools_depth++; }
static int tool_push_with(const void *a) { return tools_last = a, tools_depth++; }
static int tool_pop(void) { return --tools_depth; }
static uint64_t tool_start(const char *name) { return tools_last = name, ++tools_id; }
static uint64_t tool_start_wide(const wchar_t *name) { return tools_last = name, ++tools_id; }
static uint64_t tool_start_with(const void *a) { return tools_last = a, ++tools_id; }
static void tool_end(uint64_t id) { tools_ended = id; }
static uint64_t tool_domain_start(void *domain, const void *a) { return tools_last = domain, ++tools_id; }
static void tool_domain_end(void *domain, uint64_t id) { tools_last = domain, tools_ended = id; }
static int tool_domain_push(void *domain, const void *a) { return tools_last = domain, tools_depth++; }
static int tool_domain_pop(void *domain) { return tools_last = domain, --tools_depth; }
static char handles[64];
static int handed;
static void *tool_register(void *domain, const char *text) { return &handles[handed++ % 64]; }
static void *tool_register_wide(void *domain, const wchar_t *text) { return &handles[handed++ % 64]; }
static int tool_mark(const char *name) { return 7; }

static bool tool_fails, tool_is_another;
static int tool(const void *(*get)(uint32_t))
{
	struct {
		size_t size;
		int (*get)(int, void ****, unsigned *);
	} const *callbacks = get(1);
	void ***core, ***core2;
	unsigned size;
	CHECK(callbacks->get(CORE, &core, &size) && size == IDS);
	*core[2] = (void *)tool_mark;
	*core[4] = (void *)tool_start_with, *core[5] = (void *)tool_start, *core[6] = (void *)tool_start_wide;
	*core[7] = (void *)tool_end, *core[8] = (void *)tool_push_with, *core[9] = (void *)tool_push;
	*core[10] = (void *)tool_push_wide, *core[11] = tool_is_another ? (void *)tool_mark : (void *)tool_pop;
	if (callbacks->get(CORE2, &core2, &size)) {
		*core2[2] = (void *)tool_domain_start, *core2[3] = (void *)tool_domain_end,
		*core2[4] = (void *)tool_domain_push;
		*core2[5] = (void *)tool_domain_pop, *core2[10] = (void *)tool_register,
		*core2[11] = (void *)tool_register_wide;
	}
	return !tool_fails;
}

static void tool_hears(struct program *p)
{
	struct attributes a = with(ASCII, "step");
	CHECK(push(p, "step") == 0 && push_wide(p, L"other") == 1 && push_with(p, &a) == 2 && tools_last == &a);
	CHECK(domain_push(p, p, &a) == 3);
	CHECK(tools_last == p);
	CHECK(domain_pop(p, p) == 3);
	CHECK(ended(1));
	CHECK(pop(p) == 2 && pop(p) == 1 && pop(p) == 0 && ended(1));
	uint64_t id = start(p, "step");
	CHECK(id == tools_id);
	end(p, id);
	CHECK(tools_ended == id && ended(1));
	id = domain_start(p, p, &a);
	CHECK(id == tools_id);
	domain_end(p, p, id);
	CHECK(tools_ended == id && ended(1));
	CHECK(string(p, "anything") == &handles[(handed - 1) % 64]);
	CHECK(CALL(p, core, 2, int (*)(const char *))("a mark") == 7);
}

// Beside another tool, in a process of its own: what is behind ours is the same from the first program on.
static int beside_another(void)
{
	static struct program first, second, old, alone, left;
	int (*ours)(const void *(*)(uint32_t)) = gp_nvtx_beside((void *)tool);
	CHECK(ours != tool && gp_nvtx_beside((void *)tool) == ours);
	CHECK(gp_nvtx_beside((void *)ours) == ours &&
	      gp_nvtx_beside((void *)InitializeInjectionNvtx2) == InitializeInjectionNvtx2);
	CHECK(gp_nvtx_beside((void *)unattached) == unattached); // a second other tool

	tool_fails = true;
	CHECK(initialise(&left, ours) == 0);
	tool_fails = false;
	lacks_core2 = true;
	CHECK(initialise(&old, ours) == 1);
	lacks_core2 = false;
	push(&old, "step");
	pop(&old);
	CHECK(ended(1) && tools_depth == 0);
	CHECK(initialise(&first, ours) == 1 && initialise(&second, ours) == 1 && initialise(&second, ours) == 1);
	tool_hears(&first);
	tool_hears(&second);
	named_ends(&first);
	nest(&second);

	// Ours would not know which function to call: the program is the tool's.
	tool_is_another = true;
	CHECK(initialise(&left, ours) == 1 && left.core[9] == tool_push && left.core[11] == tool_mark);
	CHECK(initialise(&alone, InitializeInjectionNvtx2) == 0 && !alone.core[9] && !alone.core[11]);
	return 0;
}

// All places have strings that were registered before the names were known. A string with a name still finds one, the same for all threads.
static struct program crowded;
static pthread_barrier_t all_here;
static void *registers(void *got)
{
	pthread_barrier_wait(&all_here);
	*(void **)got = string(&crowded, "step");
	return NULL;
}

static int with_many_strings(void)
{
	enum { MANY = 300, THREADS = 4 };
	static void *handle[MANY], *got[THREADS];
	pthread_t thread[THREADS];
	char text[32];
	CHECK(!setenv("GPREEMPT_PRIORITY", "lc", 1) && initialise(&crowded, InitializeInjectionNvtx2) == 1);
	for (int i = 0; i < MANY; i++) {
		snprintf(text, sizeof text, "module %d", i);
		handle[i] = string(&crowded, text);
	}
	gp_nvtx_name(0, "module 0");
	gp_nvtx_name(1, "request");
	gp_nvtx_name_step("step");
	gp_nvtx_named();
	CHECK(!pthread_barrier_init(&all_here, NULL, THREADS));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, registers, &got[i]));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(thread[i], NULL) && got[i] && got[i] == got[0]);
	void *request = string(&crowded, "request");
	CHECK(request && request != got[0] && string(&crowded, "request") == request &&
	      string_wide(&crowded, L"step") == got[0]);
	CHECK(string(&crowded, "module 0") == handle[0]); // a name
	CHECK(!string(&crowded, "module 1"));
	struct attributes step = with(REGISTERED, got[0]);
	push_with(&crowded, &step), pop(&crowded);
	CHECK(ended(1));
	for (int i = 0; i < MANY; i++) { // those that gave way too: no other has their handles
		struct attributes other = with(REGISTERED, handle[i]);
		CHECK(!handle[i] || (handle[i] != got[0] && handle[i] != request));
		push_with(&crowded, &other), pop(&crowded);
	}
	CHECK(ended(0));
	return 0;
}

static void runs_well(char *self, char *what)
{
	int status;
	pid_t child = fork();
	if (!child)
		execl("/proc/self/exe", self, what, (char *)NULL);
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **argument)
{
	static struct program alone, early, old, beside;
	static char empty[64];
	if (count > 1 && !strcmp(argument[1], "strings"))
		return with_many_strings();
	if (count > 1) {
		gp_nvtx_name_step("step");
		gp_nvtx_named();
		return beside_another();
	}
	CHECK(!unsetenv("GPREEMPT_PRIORITY"));
	CHECK(gp_nvtx_beside((void *)tool) == tool && !gp_nvtx_beside(NULL)); // the settings name no ranges
	CHECK(initialise(&alone, InitializeInjectionNvtx2) == 0 && !alone.core[9]);

	// NVTX is there before CUDA: the names are not known yet. Strings that are registered then count later.
	CHECK(!setenv("GPREEMPT_PRIORITY", "lc", 1));
	CHECK(initialise(&early, InitializeInjectionNvtx2) == 1);
	struct attributes registered = with(REGISTERED, string(&early, "step"));
	CHECK(registered.message && string(&early, "step") == registered.message);
	CHECK(push(&early, "step") == NO_TRACKING && pop(&early) == NO_TRACKING && start(&early, "step") == 0);

	gp_nvtx_name_step(empty);
	gp_nvtx_named();
	CHECK(initialise(&alone, InitializeInjectionNvtx2) == 0 && !alone.core[9] && !alone.core[11]);
	CHECK(gp_nvtx_beside((void *)tool) == tool);
	CHECK(push(&early, "step") == NO_TRACKING && pop(&early) == NO_TRACKING && start(&early, "step") == 0 && ended(0));

	gp_nvtx_name_step("step");
	runs_well(*argument, "beside");
	runs_well(*argument, "strings");

	push_with(&early, &registered);
	pop(&early);
	CHECK(ended(1));
	CHECK(initialise(&alone, InitializeInjectionNvtx2) == 1 && initialise(&alone, InitializeInjectionNvtx2) == 1);
	CHECK(push(&alone, "step") == NO_TRACKING && pop(&alone) == NO_TRACKING && ended(1));
	CHECK(start(&alone, "other") == 0 && string(&alone, "other") == NULL);
	lacks_core2 = true;
	CHECK(initialise(&old, InitializeInjectionNvtx2) == 1 && !old.core2[4]);
	lacks_core2 = false;
	push(&old, "step");
	pop(&old);
	CHECK(ended(1));
	named_ends(&alone);
	nest(&alone);
	threads(&alone);
	wrong(&alone);

	// Other programs' tables stay as they are.
	CHECK(initialise(&beside, gp_nvtx_beside((void *)tool)) == 1 && beside.core[11] == tool_pop);
	return 0;
}
