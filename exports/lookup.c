// lookup.c - where programs find symbols, and where the driver's own are found.
//
// cudart opens libcuda.so.1 itself and asks dlsym for cuGetProcAddress, so exported names alone would never be
// called: dlsym, dlvsym and cuGetProcAddress are answered here. The real one always answers first, and its answer is
// replaced only where it is the address of a function in table.h; ABI versions, per-thread variants and
// status codes stay the driver's.
#include "exports/layer.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>

typedef void *dlsym_fn(void *, const char *);
typedef void *dlvsym_fn(void *, const char *, const char *);
typedef void *dlopen_fn(const char *, int);

static _Atomic(dlsym_fn *) real_dlsym;
static _Atomic(dlvsym_fn *) real_dlvsym;
static _Atomic(dlopen_fn *) real_dlopen;

// libc's dlsym cannot be asked for by name here, so it is read from libc's symbol table.

struct symbols {
	const ElfW(Sym) *table;
	const char *names;
	const ElfW(Half) *versions;
	const uint32_t *hash; // DT_GNU_HASH
	ElfW(Addr) base;
};

// glibc relocates the pointers of a dynamic section in place, except where it is read-only.
static const void *dynamic_pointer(ElfW(Addr) base, ElfW(Addr) value) {
	return (const void *)(value < base ? base + value : value);
}

static bool read_symbols(const struct dl_phdr_info *info, struct symbols *s) {
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

// default_version finds name@@VERSION, the one a program linked today would get.
static void *default_version(const struct symbols *s, const char *name) {
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
		if ((hash | 1) == (wanted | 1) && symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
		    !(s->versions && s->versions[i] & HIDDEN_VERSION) && strcmp(s->names + symbol->st_name, name) == 0)
			return (void *)(s->base + symbol->st_value);
		if (hash & 1)
			return NULL;
	}
}

// In glibc 2.34 and later the functions are in libc itself, before that in libdl.
static int visit_library(struct dl_phdr_info *info, size_t size, void *unused) {
	(void)size, (void)unused;
	const char *slash = strrchr(info->dlpi_name, '/');
	const char *file = slash ? slash + 1 : info->dlpi_name;
	struct symbols s;
	if ((strcmp(file, "libc.so.6") != 0 && strcmp(file, "libdl.so.2") != 0) || !read_symbols(info, &s))
		return 0;
	void *sym = default_version(&s, "dlsym"), *vsym = default_version(&s, "dlvsym"), *open = default_version(&s, "dlopen");
	if (!sym || !vsym || !open)
		return 0;
	atomic_store(&real_dlvsym, (dlvsym_fn *)vsym);
	atomic_store(&real_dlopen, (dlopen_fn *)open);
	atomic_store(&real_dlsym, (dlsym_fn *)sym);
	return 1;
}

static COLD void find_libc(void) {
	dl_iterate_phdr(visit_library, NULL);
}

// libc_function loads one of the three; every thread that finds them missing stores the same values.
#define libc_function(slot) \
	({ \
		if (!atomic_load_explicit(&real_dlsym, memory_order_acquire)) \
			find_libc(); \
		atomic_load_explicit(&slot, memory_order_relaxed); \
	})

void *gp_next_symbol(const char *name) {
	dlsym_fn *next = libc_function(real_dlsym);
	void *found = next ? next(RTLD_NEXT, name) : NULL;
	__asm__ volatile("" : "+r"(found)); // no tail call: the caller that libc sees must be this library
	return found;
}

// Set by the linker: this library's first and last byte. Hidden, or they would be another library's.
__attribute__((visibility("hidden"))) extern const char __ehdr_start[], _end[];

bool gp_is_ours(const void *address) {
	return (const char *)address >= __ehdr_start && (const char *)address < _end;
}

// The driver.

static const struct {
	const char *name;
	void *wrapper; // NULL: called, not intercepted
} rows[GP_ROWS] = {
#define ROW(kind, name, ...) {#name, (void *)name},
#define CALLED(name, params) {#name, NULL},
#include "exports/table.h"
};

static CUresult missing(void) {
	return CUDA_ERROR_NOT_FOUND;
}

static bool resolve(bool load);

// What a slot holds first: resolve all of them, then go on to the driver.
#define ROW(kind, name, stream, params, args, ...) \
	static COLD CUresult first_##name params { \
		return resolve(true) ? REAL(name) args : CUDA_ERROR_SHARED_OBJECT_INIT_FAILED; \
	}
#define CALLED(name, params)
#include "exports/table.h"

_Atomic(void *) gp_real[GP_ROWS] = {
#define ROW(kind, name, ...) (void *)first_##name,
#define CALLED(name, params) (void *)missing,
#include "exports/table.h"
};

static _Atomic(void *) driver_handle; // set last: gp_real and by_address are complete

// by_address maps the driver's functions to rows: an open hash table of row + 1.
enum { ADDRESSES = 1024 };
_Static_assert(GP_ROWS < ADDRESSES / 2, "by_address is too full");
static _Atomic uint16_t by_address[ADDRESSES];

static unsigned int address_hash(const void *address) {
	return ((uintptr_t)address >> 4) * 0x9E3779B97F4A7C15ull >> 54; // 10 bits
}

// find_row returns the place of an address, occupied or free. The first row of an address keeps it.
static _Atomic uint16_t *find_row(const void *address) {
	for (unsigned int i = address_hash(address);; i = (i + 1) % ADDRESSES) {
		uint16_t row = atomic_load(&by_address[i]);
		if (row == 0 || atomic_load(&gp_real[row - 1]) == address)
			return &by_address[i];
	}
}

// resolve finds all the driver's functions. Several threads may do so at once, each storing the same values; a
// lock could be held by a thread that the driver's own constructors called back.
static COLD bool resolve_now(bool load) {
	dlsym_fn *find = libc_function(real_dlsym);
	dlopen_fn *open = libc_function(real_dlopen);
	if (!find || !open)
		return false;
	int saved_errno = errno;
	void *driver = open("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!driver && load)
		driver = open("libcuda.so.1", RTLD_NOW);
	for (uint16_t row = 0; driver && row < GP_ROWS; row++) {
		void *function = find(driver, rows[row].name);
		if (!function || gp_is_ours(function)) {
			atomic_store(&gp_real[row], (void *)missing);
			continue;
		}
		atomic_store(&gp_real[row], function);
		for (;;) {
			_Atomic uint16_t *place = find_row(function);
			uint16_t empty = 0;
			if (!rows[row].wrapper || atomic_load(place) || atomic_compare_exchange_strong(place, &empty, row + 1))
				break;
		}
	}
	if (driver)
		atomic_store_explicit(&driver_handle, driver, memory_order_release);
	dlerror(); // the failures above are not the program's
	errno = saved_errno;
	return driver != NULL;
}

static inline bool resolve(bool load) {
	return likely(atomic_load_explicit(&driver_handle, memory_order_acquire)) || resolve_now(load);
}

void *gp_driver_symbol(const char *name) {
	if (!resolve(true))
		return NULL;
	void *function = libc_function(real_dlsym)(atomic_load(&driver_handle), name);
	if (!function)
		dlerror();
	return gp_is_ours(function) ? NULL : function;
}

// Functions that table.h does not have. Whatever puts work on streams past the hooks could overtake what they hold back, so
// the core is told before the program has the first of these.

static char unknown[64];
static atomic_int unknown_state; // 0, 1 being written, 2 written

void gp_tell_unknown(void) {
	static atomic_bool told;
	const struct gp_hooks *hooks = gp_hooks();
	if (atomic_load(&unknown_state) == 2 && hooks && hooks->unknown_function && !atomic_exchange(&told, true))
		hooks->unknown_function(unknown);
}

static COLD void not_known(const char *name) {
	int none = 0;
	if (atomic_compare_exchange_strong(&unknown_state, &none, 1)) {
		strncpy(unknown, name, sizeof unknown - 1);
		atomic_store(&unknown_state, 2);
	}
	gp_tell_unknown();
}

// What the program gets instead of what was found by a name: by libc (of whatever library), or by the driver.
static void *substitute(void *found, const char *name, bool by_driver) {
	if (!found || gp_is_ours(found) || !resolve(false))
		return found;
	uint16_t row = atomic_load(find_row(found));
	if (row)
		return rows[row - 1].wrapper;
	if (name && gp_may_submit(name) && (by_driver || found == libc_function(real_dlsym)(atomic_load(&driver_handle), name)))
		not_known(name);
	return found;
}

// Exported: dlsym, dlvsym, dlopen.

static bool may_be_driver(const char *name) {
	return name[0] == 'c' && name[1] == 'u';
}

// RTLD_NEXT and RTLD_DEFAULT depend on the caller and need no help: in global lookup order this library comes
// before the driver.
static inline bool caller_decides(void *handle) {
	return handle == RTLD_NEXT || handle == RTLD_DEFAULT;
}

// A program may ask for a driver function only to learn whether there is a driver, or whether it has the function.
// Our own definition must not be the answer while there is none.
static bool found_only_here(void *handle, const char *name) {
	if (likely(handle != RTLD_DEFAULT || !may_be_driver(name)))
		return false;
	for (int row = 0; row < GP_ROWS; row++)
		if (strcmp(rows[row].name, name) == 0)
			return !resolve(false) || atomic_load(&gp_real[row]) == (void *)missing;
	return false;
}

PUBLIC void *dlsym(void *restrict handle, const char *restrict name) {
	dlsym_fn *next = libc_function(real_dlsym);
	if (found_only_here(handle, name))
		return gp_next_symbol(name);
	if (caller_decides(handle) || !may_be_driver(name) || !gp_active())
		TAIL next(handle, name);
	return substitute(next(handle, name), name, false);
}

PUBLIC void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version) {
	dlvsym_fn *next = libc_function(real_dlvsym);
	if (caller_decides(handle) || !may_be_driver(name) || !gp_active())
		TAIL next(handle, name, version);
	return substitute(next(handle, name, version), name, false);
}

// A library opened with RTLD_DEEPBIND would bind its calls to libcuda ahead of this library, past every
// wrapper, so the flag is dropped.
PUBLIC void *dlopen(const char *file, int mode) {
	dlopen_fn *next = libc_function(real_dlopen);
	if (mode & RTLD_DEEPBIND && gp_active())
		mode &= ~RTLD_DEEPBIND;
	TAIL next(file, mode);
}

// Runtimes that ask here for cuGetExportTable (11.3 and later) are not those for which cudart.c is.
static bool substituted(const char *symbol) {
	return !symbol || strcmp(symbol, "cuGetExportTable") != 0;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags) {
	CUresult result = REAL(cuGetProcAddress)(symbol, pfn, version, flags);
	if (result == CUDA_SUCCESS && pfn && gp_active() && substituted(symbol))
		*pfn = substitute(*pfn, symbol, true);
	return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, void *status) {
	CUresult result = REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
	if (result == CUDA_SUCCESS && pfn && gp_active() && substituted(symbol))
		*pfn = substitute(*pfn, symbol, true);
	return result;
}
