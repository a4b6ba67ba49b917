// An audit library (LD_AUDIT) as profilers have one: it sees every binding.
#define _GNU_SOURCE
#include <link.h>

unsigned int la_version(unsigned int version) { return version; }

unsigned int la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie)
{
	(void)map, (void)namespace, (void)cookie;
	return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned int index, uintptr_t *from, uintptr_t *to, unsigned int *flags,
		       const char *name)
{
	(void)index, (void)from, (void)to, (void)flags, (void)name;
	return symbol->st_value;
}
