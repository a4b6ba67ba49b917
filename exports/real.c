// real.c - finds the functions behind the exported ones: libc's lookup functions, and the driver's.
#include "exports/layer.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>

static _Atomic(gp_dlsym_fn *) dlsym_of_libc;
static _Atomic(gp_dlvsym_fn *) dlvsym_of_libc;
static _Atomic(gp_dlopen_fn *) dlopen_of_libc;

// Our dlsym hides libc's, which is therefore read from libc's symbol table.

struct symbols {
	const ElfW(Sym) * table;
	const char *names;
	const ElfW(Half) * versions;
	const uint32_t *hash; // DT_GNU_HASH
	ElfW(Addr) base;
};

// glibc relocates the pointers of a dynamic section in place, except where it is read-only.
static const void *dynamic_pointer(ElfW(Addr) base, ElfW(Addr) value)
{
	return (const void *)(value < base ? base + value : value);
}

static bool read_symbols(const struct dl_phdr_info *info, struct symbols *s)
{
	*s = (struct symbols){.base = info->dlpi_addr};
	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
			continue;
		const ElfW(Dyn) *d = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
		for (; d->d_tag != DT_NULL; d++) {
			const void *pointer = dynamic_pointer(s->base, d->d_un.d_ptr);
			switch (d->d_tag) {
			case DT_SYMTAB: s->table = pointer; break;
			case DT_STRTAB: s->names = pointer; break;
			case DT_VERSYM: s->versions = pointer; break;
			case DT_GNU_HASH: s->hash = pointer; break;
			}
		}
	}
	return s->table && s->names && s->hash;
}

// Finds name@@VERSION, which a program that is linked today gets.
static void *default_version(const struct symbols *s, const char *name)
{
	uint32_t wanted = 5381;
	for (const char *c = name; *c; c++)
		wanted = wanted * 33 + (unsigned char)*c;
	uint32_t bucket_count = s->hash[0], first = s->hash[1], bloom_words = s->hash[2];
	const uint32_t *buckets = s->hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chain = buckets + bucket_count;
	uint32_t i = bucket_count ? buckets[wanted % bucket_count] : 0;
	if (i < first)
		return NULL;
	for (;; i++) {
		const ElfW(Sym) *symbol = &s->table[i];
		uint32_t hash = chain[i - first];
		enum { HIDDEN_VERSION = 0x8000 }; // of DT_VERSYM: name@VERSION, not the default
		if ((hash | 1) == (wanted | 1) && symbol->st_shndx != SHN_UNDEF &&
		    ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && !(s->versions && s->versions[i] & HIDDEN_VERSION) &&
		    strcmp(s->names + symbol->st_name, name) == 0)
			return (void *)(s->base + symbol->st_value);
		if (hash & 1)
			return NULL;
	}
}

// In glibc 2.34 and later the functions are in libc itself, before that in libdl.
static int visit_library(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size, (void)unused;
	const char *slash = strrchr(info->dlpi_name, '/');
	const char *file = slash ? slash + 1 : info->dlpi_name;
	struct symbols s;
	if ((strcmp(file, "libc.so.6") != 0 && strcmp(file, "libdl.so.2") != 0) || !read_symbols(info, &s))
		return 0;
	void *sym = default_version(&s, "dlsym"), *vsym = default_version(&s, "dlvsym"),
	     *open = default_version(&s, "dlopen");
	if (!sym || !vsym || !open)
		return 0;
	atomic_store(&dlvsym_of_libc, (gp_dlvsym_fn *)vsym);
	atomic_store(&dlopen_of_libc, (gp_dlopen_fn *)open);
	atomic_store(&dlsym_of_libc, (gp_dlsym_fn *)sym);
	return 1;
}

static COLD void find_libc(void) { dl_iterate_phdr(visit_library, NULL); }

// Several threads may do this at once: they store the same values.
static inline void need_libc(void)
{
	if (!atomic_load_explicit(&dlsym_of_libc, memory_order_acquire))
		find_libc();
}

gp_dlsym_fn *gp_real_dlsym(void)
{
	need_libc();
	return atomic_load_explicit(&dlsym_of_libc, memory_order_relaxed);
}

gp_dlvsym_fn *gp_real_dlvsym(void)
{
	need_libc();
	return atomic_load_explicit(&dlvsym_of_libc, memory_order_relaxed);
}

gp_dlopen_fn *gp_real_dlopen(void)
{
	need_libc();
	return atomic_load_explicit(&dlopen_of_libc, memory_order_relaxed);
}

void *gp_next_symbol(const char *name)
{
	gp_dlsym_fn *next = gp_real_dlsym();
	void *found = next ? next(RTLD_NEXT, name) : NULL;
	__asm__ volatile("" : "+r"(found)); // no tail call: libc must see this library as the caller
	return found;
}

// Set by the linker: this library's first and last byte. Hidden, or they would be another library's.
__attribute__((visibility("hidden"))) extern const char __ehdr_start[], _end[];

bool gp_is_ours(const void *address) { return (const char *)address >= __ehdr_start && (const char *)address < _end; }

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

static _Atomic(void *) drivers[GP_ROWS]; // the driver's own, or missing; NULL until they are resolved
static _Atomic(void *) driver_handle;    // set last, when the tables are complete

// Maps the driver's functions to rows: an open hash table of row + 1.
enum { ADDRESSES = 1024 };
_Static_assert(GP_ROWS < ADDRESSES / 2, "by_address is too full");
static _Atomic uint16_t by_address[ADDRESSES];

static unsigned int address_hash(const void *address)
{
	return ((uintptr_t)address >> 4) * 0x9E3779B97F4A7C15ull >> 54; // 10 bits
}

// Returns the place of an address, occupied or free. The first row of an address keeps it.
static _Atomic uint16_t *find_row(const void *address)
{
	for (unsigned int i = address_hash(address);; i = (i + 1) % ADDRESSES) {
		uint16_t row = atomic_load(&by_address[i]);
		if (row == 0 || atomic_load(&drivers[row - 1]) == address)
			return &by_address[i];
	}
}

static void set_driver(enum gp_row row, void *function)
{
	void *first = at_first[row];
	atomic_store(&drivers[row], function);
	atomic_compare_exchange_strong(&gp_real[row], &first, function); // a substitute stays
}

// Several threads may do this at once: they store the same values. There is no lock because the driver's constructors may call
// back while it is held.
static COLD bool resolve_now(bool load)
{
	gp_dlsym_fn *find = gp_real_dlsym();
	gp_dlopen_fn *open = gp_real_dlopen();
	if (!find || !open)
		return false;
	int saved_errno = errno;
	void *driver = open("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!driver && load)
		driver = open("libcuda.so.1", RTLD_NOW);
	for (uint16_t row = 0; driver && row < GP_ROWS; row++) {
		void *function = find(driver, gp_row_name[row]);
		if (!function || gp_is_ours(function)) {
			set_driver(row, (void *)missing);
			continue;
		}
		set_driver(row, function);
		for (;;) {
			_Atomic uint16_t *place = find_row(function);
			uint16_t empty = 0;
			if (!intercepted[row] || atomic_load(place) ||
			    atomic_compare_exchange_strong(place, &empty, row + 1))
				break;
		}
	}
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

enum gp_row gp_row_of(const void *function)
{
	uint16_t row = atomic_load(find_row(function));
	return row ? (enum gp_row)(row - 1) : GP_ROWS;
}

bool gp_driver_has(enum gp_row row) { return atomic_load(&drivers[row]) != (void *)missing; }

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

void *gp_driver_symbol(const char *name)
{
	if (!gp_resolve(true))
		return NULL;
	void *function = gp_real_dlsym()(atomic_load(&driver_handle), name);
	if (!function)
		dlerror();
	return gp_is_ours(function) ? NULL : function;
}
