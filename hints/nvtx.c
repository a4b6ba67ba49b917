// nvtx.c - an NVTX injection library. NVTX 3 is part of each program that uses it, and loads the library that
// NVTX_INJECTION64_PATH names at the first call; the library's constructor names this one, where no other is named. Beside another tool
// it stands in front of that one (gp_nvtx_beside). Types and numbers are those of nvtx3/nvtxDetail/nvtxTypes.h and nvToolsExt.h, version
// 3.
//
// Functions return the other tool's results, else those of NVTX without a tool. Where that would be 0 or NULL, starts of steps return an
// id, and registrations of strings a handle: the program says by these which range or name it means.
#define _GNU_SOURCE
#include "hints/nvtx.h"
#include "hints/source.h"
#include "preempt/process/process.h"
#define GPREEMPT_WEAK // here it is there
#include "api/gpreempt.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define PUBLIC __attribute__((visibility("default")))

enum {
	NVTX_ETID_CALLBACKS = 1,
	NVTX_CB_MODULE_CORE = 1,
	NVTX_CB_MODULE_CORE2 = 5,
	NVTX_CBID_CORE_RangeStartEx = 4,
	NVTX_CBID_CORE_RangeStartA = 5,
	NVTX_CBID_CORE_RangeStartW = 6,
	NVTX_CBID_CORE_RangeEnd = 7,
	NVTX_CBID_CORE_RangePushEx = 8,
	NVTX_CBID_CORE_RangePushA = 9,
	NVTX_CBID_CORE_RangePushW = 10,
	NVTX_CBID_CORE_RangePop = 11,
	NVTX_CBID_CORE2_DomainRangeStartEx = 2,
	NVTX_CBID_CORE2_DomainRangeEnd = 3,
	NVTX_CBID_CORE2_DomainRangePushEx = 4,
	NVTX_CBID_CORE2_DomainRangePop = 5,
	NVTX_CBID_CORE2_DomainRegisterStringA = 10,
	NVTX_CBID_CORE2_DomainRegisterStringW = 11,
	NVTX_MESSAGE_TYPE_ASCII = 1,
	NVTX_MESSAGE_TYPE_UNICODE = 2,
	NVTX_MESSAGE_TYPE_REGISTERED = 3,
	NVTX_NO_PUSH_POP_TRACKING = -2,
};

struct attributes { // nvtxEventAttributes_v2
	uint16_t version, size;
	uint32_t category;
	int32_t color_type;
	uint32_t color;
	int32_t payload_type, reserved;
	uint64_t payload;
	int32_t message_type;
	const void *message;
};
_Static_assert(offsetof(struct attributes, message) == 40, "nvtxEventAttributes_v2");

struct callbacks { // NvtxExportTableCallbacks
	size_t struct_size;
	int (*GetModuleFunctionTable)(int module, void ****out_table, unsigned *out_size);
};

typedef const void *export_table_fn(uint32_t);
typedef int initialize_fn(export_table_fn *);

enum {
	NAME_BYTES = 64,
	STRINGS = 256,
	MOST_BELIEVED = 3,
	DOMAINS = 4, // of one thread, in which it is within a step at once
	STARTED = 32 // ranges that are open at once, of all threads
};
// Written before known is set, but for the counts of believed.
static char names[GP_RANGES][NAME_BYTES], step_name[NAME_BYTES];
static uint32_t name_count;
static _Atomic uint32_t believed[GP_RANGES];
static bool has_step;
// Set once: the configuration was read. Writer: the thread that initialises CUDA. Readers: all threads of the program, which without it see
// no names, as if none were configured.
static _Atomic uint32_t known;

static void set_name(char *to, const char *name)
{
	if (strlen(name) < NAME_BYTES)
		strcpy(to, name);
}

void gp_nvtx_name(uint32_t i, const char *name)
{
	if (i >= GP_RANGES)
		return;
	set_name(names[i], name);
	gp_estimate[i].key = i + 1;
	name_count = i + 1;
}

void gp_nvtx_name_step(const char *name)
{
	set_name(step_name, name);
	has_step = *step_name;
}

void gp_nvtx_named(void) { known = 1; }

static bool counts_steps(void) { return known && has_step; }

// A range begins. Returns whether its end is a step's.
static bool begun(const char *name)
{
	if (!known || !name)
		return false;
	for (uint32_t i = 0; gp_give && i < name_count; i++) {
		if (strcmp(names[i], name))
			continue;
		uint64_t now = gp_now_ns();
		gp_hint_fn *give = gp_give;
		// A range that the user named is trusted before anything is learnt, but not so often that wrong hints would
		// switch the source off.
		if (!gp_estimate[i].likely_ppm && believed[i] < MOST_BELIEVED && believed[i]++ < MOST_BELIEVED)
			give(GP_HINT_NVTX, now, 0, 1);
		gp_announce(GP_HINT_NVTX, i, i + 1, GP_FDS, 0, UINT32_MAX, now);
		break;
	}
	return has_step && !strcmp(step_name, name);
}

// False: the name is longer than any that is known here.
static bool narrow(const wchar_t *name, char text[NAME_BYTES])
{
	size_t i = 0;
	for (; i < NAME_BYTES - 1 && name[i]; i++)
		text[i] = name[i] > 0 && name[i] < 128 ? (char)name[i] : '?';
	text[i] = 0;
	return !name[i];
}

static bool begun_wide(const wchar_t *name)
{
	char text[NAME_BYTES];
	return known && name && narrow(name, text) && begun(text);
}

// Strings that programs registered. Writers: threads that register, each by a compare-and-swap, else two would have one place and one of their
// handles would mean nothing. Readers: all, which see what it points to since that was written before. A place goes from NULL to a string, and
// from one without a configured name to one that has it: no thread looks for the first any more. No string is freed, since its address
// may be the program's handle, and would be another's later. So each place loses one string at most.
static _Atomic(struct string {
	const void *handle; // the other tool's, else this string's own address
	char text[];
} *) registered[STRINGS];

static bool is_named(const char *text)
{
	for (uint32_t i = 0; i < name_count; i++)
		if (!strcmp(names[i], text))
			return true;
	return has_step && !strcmp(step_name, text);
}

static struct string *new_string(const char *text, size_t bytes, const void *handle)
{
	struct string *s = malloc(sizeof *s + bytes);
	if (s) {
		s->handle = handle ? handle : s;
		memcpy(s->text, text, bytes);
	}
	return s;
}

// Returns the string's handle, NULL where it is not kept. Once the names are known only those are kept, also in places of others.
static const void *register_string(const char *text, const void *handle)
{
	size_t bytes = text ? strlen(text) + 1 : 0;
	bool only_named = known;
	struct string *s = NULL;
	if (!bytes || bytes > NAME_BYTES || (only_named && !is_named(text)))
		return NULL;
	for (int replaces = 0; replaces <= only_named; replaces++)
		for (int i = 0; i < STRINGS; i++) {
			struct string *there = registered[i];
			while (!there || (replaces && !is_named(there->text))) {
				if (!s && !(s = new_string(text, bytes, handle)))
					return NULL;
				if (__atomic_compare_exchange_n((struct string **)&registered[i], &there, s, false,
								__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
					return s->handle;
			}
			if (!strcmp(there->text, text) && (!handle || there->handle == handle)) {
				free(s); // no thread has seen it
				return there->handle;
			}
		}
	free(s);
	return NULL;
}

static bool begun_registered(const void *handle)
{
	for (int i = 0; handle && i < STRINGS; i++) {
		const struct string *s = registered[i];
		if (!s)
			return false;
		if (s->handle == handle)
			return begun(s->text);
	}
	return false;
}

static bool begun_with(const struct attributes *a)
{
	if (!a || a->size < sizeof *a)
		return false;
	switch (a->message_type) {
	case NVTX_MESSAGE_TYPE_ASCII: return begun(a->message);
	case NVTX_MESSAGE_TYPE_UNICODE: return begun_wide(a->message);
	case NVTX_MESSAGE_TYPE_REGISTERED: return begun_registered(a->message);
	}
	return false;
}

// Ranges that are pushed nest, by thread and domain. A step within a step is part of it. Without another tool there are no domains: all
// are NULL.
GP_OF_THREAD struct within {
	void *domain;
	uint64_t depth; // ranges of the domain that are open, from the step's on; 0: none is a step's
} within[DOMAINS];

static struct within *find_within(void *domain)
{
	struct within *w = *GP_MINE(within);
	for (int i = 0; i < DOMAINS; i++)
		if (w[i].depth && w[i].domain == domain)
			return &w[i];
	return NULL;
}

static void pushed(void *domain, bool step)
{
	if (!counts_steps())
		return;
	struct within *w = find_within(domain);
	if (w) {
		w->depth++;
		return;
	}
	w = *GP_MINE(within);
	for (int i = 0; step && i < DOMAINS; i++)
		if (!w[i].depth) {
			w[i] = (struct within){domain, 1};
			return;
		}
}

static void popped(void *domain)
{
	struct within *w = counts_steps() ? find_within(domain) : NULL;
	if (w && !--w->depth)
		(void)gpreempt_step();
}

// Ranges of steps that are started, by their id; 0: a free place. Writers: the thread that starts one, and the one that ends it. Both go by a
// compare-and-swap, else two ranges would have one place, or one would end two steps. Where all places are taken, by ranges that the
// program never ends, the least id is given up. Our ids count up, so that it is the oldest; another tool's need not.
static _Atomic uint64_t started[STARTED];
static _Atomic uint64_t own_id; // the latest of those given where no other tool gives ids

static bool put(int place, uint64_t from, uint64_t to)
{
	return started[place] == from && __atomic_compare_exchange_n((uint64_t *)&started[place], &from, to, false,
								     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static uint64_t started_as(uint64_t id, bool step)
{
	if (!step)
		return id;
	if (!id)
		id = ++own_id;
	for (;;) { // again only where another thread has changed a place meanwhile
		int oldest = 0;
		uint64_t least = UINT64_MAX;
		for (int i = 0; i < STARTED; i++) {
			if (put(i, 0, id))
				return id;
			uint64_t there = started[i];
			if (there < least)
				least = there, oldest = i;
		}
		if (put(oldest, least, id))
			return id;
	}
}

static void ended(uint64_t id)
{
	for (int i = 0; id && counts_steps() && i < STARTED; i++)
		if (put(i, id, 0)) {
			(void)gpreempt_step();
			return;
		}
}

enum function {
	START_EX,
	START_A,
	START_W,
	END,
	PUSH_EX,
	PUSH_A,
	PUSH_W,
	POP,
	DOMAIN_START,
	DOMAIN_END,
	DOMAIN_PUSH,
	DOMAIN_POP,
	REGISTER_A,
	REGISTER_W,
	FUNCTIONS
};

// The other tool's functions, NULL where it has none. Writers: attach(), under its lock, each before any program finds that
// function of this file in its table. Readers: these functions.
static _Atomic(void *) next[FUNCTIONS];

// Calls the other tool's function, of the same type as ours; otherwise the value is what NVTX returns without a tool.
#define NEXT(which, ours, otherwise, ...) \
	({ \
		typeof(&(ours)) f = (typeof(&(ours)))next[which]; \
		f ? f(__VA_ARGS__) : (otherwise); \
	})

static int push(const char *name)
{
	pushed(NULL, begun(name));
	return NEXT(PUSH_A, push, NVTX_NO_PUSH_POP_TRACKING, name);
}
static int push_wide(const wchar_t *name)
{
	pushed(NULL, begun_wide(name));
	return NEXT(PUSH_W, push_wide, NVTX_NO_PUSH_POP_TRACKING, name);
}
static int push_with(const struct attributes *a)
{
	pushed(NULL, begun_with(a));
	return NEXT(PUSH_EX, push_with, NVTX_NO_PUSH_POP_TRACKING, a);
}
static int pop(void)
{
	int depth = NEXT(POP, pop, NVTX_NO_PUSH_POP_TRACKING);
	popped(NULL);
	return depth;
}
static uint64_t start(const char *name)
{
	bool step = begun(name);
	return started_as(NEXT(START_A, start, 0, name), step);
}
static uint64_t start_wide(const wchar_t *name)
{
	bool step = begun_wide(name);
	return started_as(NEXT(START_W, start_wide, 0, name), step);
}
static uint64_t start_with(const struct attributes *a)
{
	bool step = begun_with(a);
	return started_as(NEXT(START_EX, start_with, 0, a), step);
}
static void end(uint64_t id)
{
	NEXT(END, end, (void)0, id);
	ended(id);
}
static int domain_push(void *domain, const struct attributes *a)
{
	pushed(domain, begun_with(a));
	return NEXT(DOMAIN_PUSH, domain_push, NVTX_NO_PUSH_POP_TRACKING, domain, a);
}
static int domain_pop(void *domain)
{
	int depth = NEXT(DOMAIN_POP, domain_pop, NVTX_NO_PUSH_POP_TRACKING, domain);
	popped(domain);
	return depth;
}
static uint64_t domain_start(void *domain, const struct attributes *a)
{
	bool step = begun_with(a);
	return started_as(NEXT(DOMAIN_START, domain_start, 0, domain, a), step);
}
static void domain_end(void *domain, uint64_t id)
{
	NEXT(DOMAIN_END, domain_end, (void)0, domain, id);
	ended(id);
}
static const void *domain_register(void *domain, const char *text)
{
	const void *handle = NEXT(REGISTER_A, domain_register, NULL, domain, text);
	const void *kept = register_string(text, handle);
	return handle ? handle : kept;
}
static const void *domain_register_wide(void *domain, const wchar_t *name)
{
	char text[NAME_BYTES];
	const void *handle = NEXT(REGISTER_W, domain_register_wide, NULL, domain, name);
	const void *kept = name && narrow(name, text) ? register_string(text, handle) : NULL;
	return handle ? handle : kept;
}

static const struct {
	int module;
	unsigned id;
	void *function;
} functions[FUNCTIONS] = {
	[START_EX] = {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeStartEx, start_with},
	[START_A] = {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeStartA, start},
	[START_W] = {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeStartW, start_wide},
	[END] = {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeEnd, end},
	[PUSH_EX] = {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushEx, push_with},
	[PUSH_A] = {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushA, push},
	[PUSH_W] = {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushW, push_wide},
	[POP] = {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePop, pop},
	[DOMAIN_START] = {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangeStartEx, domain_start},
	[DOMAIN_END] = {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangeEnd, domain_end},
	[DOMAIN_PUSH] = {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangePushEx, domain_push},
	[DOMAIN_POP] = {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangePop, domain_pop},
	[REGISTER_A] = {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRegisterStringA, domain_register},
	[REGISTER_W] = {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRegisterStringW, domain_register_wide},
};

PUBLIC int InitializeInjectionNvtx2(export_table_fn *);

// In a level above the lowest. The names of ranges are not known before CUDA is initialised.
static bool may_want_ranges(void)
{
	const char *priority = getenv("GPREEMPT_PRIORITY");
	if (known)
		return name_count || has_step;
	return priority && (!strcmp(priority, "lc") || (*priority >= '0' && *priority < '7' && !priority[1]));
}

// Puts ours into a program's table, in front of what another tool has put there. Each program and library that has NVTX has a
// table of its own, and nothing tells a function in which it was found: all have to have the same behind ours.
static bool attach(void **entry[FUNCTIONS], void *const was[FUNCTIONS], bool beside)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool attached[FUNCTIONS];
	void *tools[FUNCTIONS];
	bool same = true;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < FUNCTIONS; i++) {
		tools[i] = beside && entry[i] && *entry[i] != was[i] ? *entry[i] : NULL; // else NVTX's own, which ends there
		same = same && (!entry[i] || !attached[i] || next[i] == tools[i]);
	}
	for (int i = 0; same && i < FUNCTIONS; i++) {
		if (!entry[i])
			continue;
		next[i] = tools[i];
		attached[i] = true;
		__atomic_store_n(entry[i], functions[i].function, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return same;
}

// tool: the other one's initialisation, or NULL.
static int initialize(export_table_fn *get_export_table, initialize_fn *tool)
{
	const struct callbacks *callbacks =
		get_export_table && may_want_ranges() ? get_export_table(NVTX_ETID_CALLBACKS) : NULL;
	void **entry[FUNCTIONS] = {NULL}, *was[FUNCTIONS] = {NULL};

	if (!callbacks || callbacks->struct_size < sizeof *callbacks)
		return tool ? tool(get_export_table) : 0;
	for (int i = 0; i < FUNCTIONS; i++) {
		void ***table = NULL; // of pointers to function pointers
		unsigned size = 0;
		if (callbacks->GetModuleFunctionTable(functions[i].module, &table, &size) && table &&
		    functions[i].id < size && table[functions[i].id])
			was[i] = *(entry[i] = table[functions[i].id]);
	}
	if (tool && !tool(get_export_table))
		return 0;
	return attach(entry, was, tool) || tool;
}

// Programs may find it without the variable too, in the library's exports, and are then to be as without it.
PUBLIC int InitializeInjectionNvtx2(export_table_fn *get_export_table) { return initialize(get_export_table, NULL); }

// Writers: the first thread that looks the other tool up, by a compare-and-swap from NULL. Readers: beside, which is only called after that.
static _Atomic(initialize_fn *) tool;

static int beside(export_table_fn *get_export_table) { return initialize(get_export_table, tool); }

void *gp_nvtx_beside(void *found)
{
	initialize_fn *none = NULL, *other = (initialize_fn *)found;
	if (!found || other == InitializeInjectionNvtx2 || !may_want_ranges())
		return found;
	if (!__atomic_compare_exchange_n((initialize_fn **)&tool, &none, other, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
	    none != other)
		return found; // a second other tool
	return (void *)beside;
}

// Before the program has threads that could read its environment meanwhile. Another tool's library stays. The
// variable is set even where no range turns out to be configured: a first call of NVTX then loads nothing new.
__attribute__((constructor)) static void name_library(void)
{
	Dl_info self;

	if (may_want_ranges() && dladdr((void *)InitializeInjectionNvtx2, &self) && self.dli_fname && *self.dli_fname == '/')
		setenv("NVTX_INJECTION64_PATH", self.dli_fname, 0);
}

// For a program that carries NVTX with its weak symbol visible.
PUBLIC initialize_fn *InitializeInjectionNvtx2_fnptr = InitializeInjectionNvtx2;
