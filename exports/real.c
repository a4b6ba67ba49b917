// real.c - finds the functions behind the exported ones: libc's lookup functions, those of the next library, and the driver's.
//
// Another library may intercept the driver too: one that limits memory, a profiler. Where it comes behind this one in the order of
// lookups, its answers count as the driver. The program's calls go on to it. Its dlsym is never asked by RTLD_NEXT, which it would
// answer from its own place, and some do so only once.
#include "exports/layer.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <string.h>

typedef int iterate_fn(int (*)(struct dl_phdr_info *, size_t, void *), void *);

static _Atomic(gp_dlsym_fn *) dlsym_of_libc; // set last of these
static _Atomic(iterate_fn *) iterate_of_libc;
static _Atomic(gp_dlsym_fn *) next_dlsym;
static _Atomic(gp_dlvsym_fn *) next_dlvsym;
static _Atomic(gp_dlopen_fn *) next_dlopen;

static void *behind_ours(gp_dlsym_fn *find, const char *name)
{
	void *found = find(RTLD_NEXT, name);
	__asm__ volatile("" : "+r"(found)); // no tail call: libc must see this library as the caller
	return found;
}

// Several threads may do this at once: they store the same values.
static COLD void find_lookups(void)
{
	gp_dlsym_fn *find = (gp_dlsym_fn *)gp_symbol_of_libc("dlsym");
	iterate_fn *iterate = (iterate_fn *)gp_symbol_of_libc("dl_iterate_phdr");
	if (!find || !iterate)
		return;
	atomic_store(&iterate_of_libc, iterate);
	atomic_store(&next_dlsym, (gp_dlsym_fn *)behind_ours(find, "dlsym"));
	atomic_store(&next_dlvsym, (gp_dlvsym_fn *)behind_ours(find, "dlvsym"));
	atomic_store(&next_dlopen, (gp_dlopen_fn *)behind_ours(find, "dlopen"));
	atomic_store(&dlsym_of_libc, find);
}

static inline gp_dlsym_fn *libc_dlsym(void)
{
	gp_dlsym_fn *find = atomic_load_explicit(&dlsym_of_libc, memory_order_acquire);
	if (likely(find))
		return find;
	find_lookups();
	return atomic_load_explicit(&dlsym_of_libc, memory_order_acquire);
}

gp_dlsym_fn *gp_next_dlsym(void)
{
	libc_dlsym();
	return atomic_load_explicit(&next_dlsym, memory_order_relaxed);
}

gp_dlvsym_fn *gp_next_dlvsym(void)
{
	libc_dlsym();
	return atomic_load_explicit(&next_dlvsym, memory_order_relaxed);
}

gp_dlopen_fn *gp_next_dlopen(void)
{
	libc_dlsym();
	return atomic_load_explicit(&next_dlopen, memory_order_relaxed);
}

bool gp_lookups_are_libcs(void) { return gp_next_dlsym() == libc_dlsym(); }

void *gp_next_symbol(const char *name)
{
	gp_dlsym_fn *find = libc_dlsym();
	return find ? behind_ours(find, name) : NULL;
}

// Set by the linker: this library's first and last byte. Hidden, or they would be another library's.
__attribute__((visibility("hidden"))) extern const char __ehdr_start[], _end[];

bool gp_is_ours(const void *address) { return (const char *)address >= __ehdr_start && (const char *)address < _end; }

static bool is_in(const struct dl_phdr_info *info, const void *address)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &info->dlpi_phdr[i];
		if (h->p_type == PT_LOAD && (uintptr_t)address - (info->dlpi_addr + h->p_vaddr) < h->p_memsz)
			return true;
	}
	return false;
}

struct pair {
	const void *a, *b;
	bool together;
};

static int visit_pair(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	struct pair *pair = arg;
	bool a = is_in(info, pair->a);
	pair->together = a && is_in(info, pair->b);
	return a;
}

static bool in_one_object(const void *a, const void *b)
{
	struct pair pair = {.a = a, .b = b};
	atomic_load (&iterate_of_libc)(visit_pair, &pair);
	return pair.together;
}

struct place {
	const void *caller;
	const char *name;
	bool seen, ahead;
};

static const ElfW(Dyn) * dynamic_of(const struct dl_phdr_info *info)
{
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	return NULL;
}

static int visit_place(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	struct place *place = arg;
	const ElfW(Dyn) *dynamic = dynamic_of(info);
	if (is_in(info, (const void *)gp_is_ahead)) {
		place->ahead = place->seen;
		return 1;
	}
	if (!place->seen)
		place->seen = is_in(info, place->caller);
	else if (dynamic && gp_object_defines(info->dlpi_addr, dynamic, place->name))
		return 1;
	return 0;
}

bool gp_is_ahead(const void *caller, const char *name)
{
	struct place place = {.caller = caller, .name = name};
	libc_dlsym();
	atomic_load (&iterate_of_libc)(visit_place, &place);
	return place.ahead;
}

// The driver.

const char *const gp_row_name[GP_ROWS] = {
#define ROW(kind, name, ...) #name,
#define CALLED(name, params) #name,
#include "exports/table.h"
};

static const bool intercepted[GP_ROWS] = {
#define ROW(kind, name, ...) true,
#define CALLED(name, params) false,
#include "exports/table.h"
};

static CUresult missing(void) { return CUDA_ERROR_NOT_FOUND; }

// The first call of a function resolves all of them and goes on to the driver.
#define ROW(kind, name, stream, params, args, ...) \
	static COLD CUresult first_##name params \
	{ \
		return gp_resolve(true) ? REAL(name) args : CUDA_ERROR_SHARED_OBJECT_INIT_FAILED; \
	}
#define CALLED(name, params)
#include "exports/table.h"

static void *const at_first[GP_ROWS] = {
#define ROW(kind, name, ...) (void *)first_##name,
#define CALLED(name, params) (void *)missing,
#include "exports/table.h"
};

_Atomic(void *) gp_real[GP_ROWS] = {
#define ROW(kind, name, ...) (void *)first_##name,
#define CALLED(name, params) (void *)missing,
#include "exports/table.h"
};

// Both are NULL until they are resolved.
static _Atomic(void *) drivers[GP_ROWS]; // what counts as the driver's, or missing
static _Atomic(void *) own[GP_ROWS];     // the driver's own, where another library stands in front of it
static _Atomic(void *) driver_handle;    // set last, when the tables are complete

// Maps functions to rows: an open hash table. An entry is an address and a row + 1 in one word.
enum { ADDRESSES = 4096, ROW_BITS = 16, OF_A_ROW = 3 };
_Static_assert(GP_ROWS *OF_A_ROW < ADDRESSES / 2, "by_address is too full");
static _Atomic uint64_t by_address[ADDRESSES];

static unsigned int address_hash(const void *address)
{
	return ((uintptr_t)address >> 4) * 0x9E3779B97F4A7C15ull >> 52; // 12 bits
}

// The first row of an address keeps it.
static void map_to_row(const void *function, enum gp_row row)
{
	uint64_t entry = (uint64_t)(uintptr_t)function << ROW_BITS | (row + 1);
	for (unsigned int i = address_hash(function);; i = (i + 1) % ADDRESSES) {
		uint64_t there = 0;
		if (atomic_compare_exchange_strong(&by_address[i], &there, entry) || (there ^ entry) >> ROW_BITS == 0)
			return;
	}
}

enum gp_row gp_row_of(const void *function)
{
	for (unsigned int i = address_hash(function);; i = (i + 1) % ADDRESSES) {
		uint64_t entry = atomic_load(&by_address[i]);
		if (entry == 0)
			return GP_ROWS;
		if (entry >> ROW_BITS == ((uint64_t)(uintptr_t)function << ROW_BITS) >> ROW_BITS)
			return (enum gp_row)((entry & ((1 << ROW_BITS) - 1)) - 1);
	}
}

static void set_driver(enum gp_row row, void *function)
{
	void *first = at_first[row];
	atomic_store(&drivers[row], function);
	atomic_compare_exchange_strong(&gp_real[row], &first, function); // a substitute stays
}

// For one name the driver's own function, the answer of the next library's dlsym, and the symbol behind this library in the order of
// lookups. Returns what the program would call without this library. Where there is a role, that is what another library stands in front
// of the driver with, by whichever way the program comes.
static void *next_of(void *drivers_own, void *asked, void *in_order)
{
	if (!gp_active())
		return in_order ? in_order : asked;
	if (asked && asked != drivers_own)
		return asked;
	return in_order ? in_order : drivers_own;
}

static void resolve_row(enum gp_row row, void *driver)
{
	const char *name = gp_row_name[row];
	void *answers[OF_A_ROW] = {libc_dlsym()(driver, name), gp_next_dlsym()(driver, name), gp_next_symbol(name)};
	for (int i = 0; i < OF_A_ROW; i++)
		if (gp_is_ours(answers[i]))
			answers[i] = NULL;
	void *function = next_of(answers[0], answers[1], answers[2]);
	for (int i = 0; i < OF_A_ROW; i++)
		if (answers[i] && intercepted[row])
			map_to_row(answers[i], row);
	if (function && function != answers[0])
		atomic_store(&own[row], answers[0]);
	set_driver(row, function ? function : (void *)missing);
}

// Several threads may do this at once: they store the same values. There is no lock because the driver's constructors may call
// back while it is held.
static COLD bool resolve_now(bool load)
{
	gp_dlopen_fn *open = gp_next_dlopen();
	if (!open)
		return false;
	int saved_errno = errno;
	void *driver = open("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!driver && load)
		driver = open("libcuda.so.1", RTLD_NOW);
	for (int row = 0; driver && row < GP_ROWS; row++)
		resolve_row(row, driver);
	if (driver)
		atomic_store_explicit(&driver_handle, driver, memory_order_release);
	dlerror(); // the failures above are not the program's
	errno = saved_errno;
	return driver != NULL;
}

bool gp_resolve(bool load)
{
	return likely(atomic_load_explicit(&driver_handle, memory_order_acquire)) || resolve_now(load);
}

bool gp_driver_has(enum gp_row row) { return atomic_load(&drivers[row]) != (void *)missing; }

void *gp_own(enum gp_row row) { return atomic_load(&own[row]); }

bool gp_calls_back(const void *caller, enum gp_row row)
{
	return gp_own(row) && in_one_object(caller, atomic_load(&drivers[row]));
}

void gp_set_next(enum gp_row row, void *function)
{
	void *before = atomic_load(&drivers[row]), *real = before;
	if (atomic_load(&own[row]) || !atomic_compare_exchange_strong(&drivers[row], &before, function))
		return;
	atomic_store(&own[row], before);
	atomic_compare_exchange_strong(&gp_real[row], &real, function); // a substitute stays
}

void gp_substitute(const char *name, void *function)
{
	for (int row = 0; row < GP_ROWS; row++)
		if (intercepted[row] && strcmp(gp_row_name[row], name) == 0 && gp_resolve(true) && gp_driver_has(row))
			atomic_store(&gp_real[row], function);
}

void gp_drop_substitutes(void)
{
	for (int row = 0; row < GP_ROWS; row++)
		if (atomic_load(&drivers[row]))
			atomic_store(&gp_real[row], atomic_load(&drivers[row]));
}

// A library that counts what cuMemAlloc takes, and does not know cuMemCreate, would not see memory that is made so.
static bool is_uncounted(const char *name)
{
	return strcmp(name, "cuMemCreate") == 0 && gp_own(ROW_OF_cuMemAlloc_v2) && !gp_own(ROW_OF_cuMemCreate);
}

void *gp_driver_symbol(const char *name)
{
	if (!gp_resolve(true) || is_uncounted(name))
		return NULL;
	void *function = gp_next_dlsym()(atomic_load(&driver_handle), name);
	if (!function)
		dlerror();
	// The next library's dlsym may name its own function, and get ours by that name, which comes first.
	for (int row = 0; gp_is_ours(function) && row < GP_ROWS; row++)
		if (strcmp(gp_row_name[row], name) == 0 && gp_driver_has(row))
			function = atomic_load(&drivers[row]);
	return gp_is_ours(function) ? NULL : function;
}
