// objects.c - reads the symbol tables of loaded objects itself, and calls nothing.
//
// Our dlsym hides libc's, which is found here. Runtimes of sanitizers look libc's functions up before anything of theirs can be
// called, and stand in front of libc's strcmp and dl_iterate_phdr. So this file calls no function of another library, and no lock
// is taken: libc is among the objects that the program was started with, whose part of the list never changes.
#include "exports/layer.h"

#include <elf.h>

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

static bool read_symbols(ElfW(Addr) base, const ElfW(Dyn) * d, struct symbols *s)
{
	s->base = base;
	s->table = NULL, s->names = NULL, s->versions = NULL, s->hash = NULL;
	for (; d->d_tag != DT_NULL; d++) {
		const void *pointer = dynamic_pointer(base, d->d_un.d_ptr);
		switch (d->d_tag) {
		case DT_SYMTAB: s->table = pointer; break;
		case DT_STRTAB: s->names = pointer; break;
		case DT_VERSYM: s->versions = pointer; break;
		case DT_GNU_HASH: s->hash = pointer; break;
		}
	}
	return s->table && s->names && s->hash;
}

static bool same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

// Finds name@@VERSION, which a program that is linked today gets; any_version: also name@VERSION.
static void *find(const struct symbols *s, const char *name, bool any_version)
{
	enum { HIDDEN_VERSION = 0x8000 }; // of DT_VERSYM: not the default
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
		bool hidden = s->versions && s->versions[i] & HIDDEN_VERSION;
		if ((hash | 1) == (wanted | 1) && symbol->st_shndx != SHN_UNDEF &&
		    ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && (any_version || !hidden) &&
		    same(s->names + symbol->st_name, name))
			return (void *)(s->base + symbol->st_value);
		if (hash & 1)
			return NULL;
	}
}

bool gp_object_defines(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name)
{
	struct symbols s;
	return read_symbols(base, dynamic, &s) && find(&s, name, true);
}

// As <link.h> has them from glibc 2.35 on: objects that dlmopen loads are in lists of their own.
struct list {
	struct r_debug base;
	const struct list *next; // where r_version is 2
};

static const struct link_map *our_list(void)
{
	const struct list *list = (const struct list *)&_r_debug;
	for (; list; list = list->base.r_version >= 2 ? list->next : NULL)
		for (const struct link_map *m = list->base.r_map; m; m = m->l_next)
			if (m->l_ld == _DYNAMIC)
				return list->base.r_map;
	return _r_debug.r_map;
}

static bool is_file(const char *path, const char *name)
{
	const char *file = path;
	for (; *path; path++)
		if (*path == '/')
			file = path + 1;
	return same(file, name);
}

// In glibc 2.34 and later the functions are in libc itself, before that in libdl.
void *gp_symbol_of_libc(const char *name)
{
	struct symbols s;
	for (const struct link_map *m = our_list(); m; m = m->l_next) {
		void *found = NULL;
		if ((is_file(m->l_name, "libc.so.6") || is_file(m->l_name, "libdl.so.2")) &&
		    read_symbols(m->l_addr, m->l_ld, &s))
			found = find(&s, name, false);
		if (found)
			return found;
	}
	return NULL;
}
