// export_table.c - gives CUDA runtimes up to 11.1 a table in which the function that loads code is ours.
//
// Such runtimes do not load the code of their program by cuModuleLoad*, but by a function in a table that cuGetExportTable
// returns for an identifier. NVIDIA documents neither. The runtime 11.1 calls that one function for it (TestRuntimeOf11_1 in
// test/e2e runs NVIDIA's), and other implementations of the driver (ZLUDA, Wine) agree on what the function does. From 11.2 on
// a runtime checks at its start that the driver is NVIDIA's (cudaErrorSoftwareValidityNotEstablished). According to the same
// sources it also checks where the tables are, and would refuse a copy. So it gets the driver's table, and its code is loaded
// unseen. From 12.0 on a runtime loads code by cuLibraryLoadData.
#include "exports/layer.h"

#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const unsigned char runtime_table[16] = {
	0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9,
};
// The identifier of the table for that check. A runtime that contains it makes the check.
static const unsigned char check_table[16] = {
	0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2,
};

// Slots of the table. It begins with its size in bytes; functions follow.
enum { LOAD = 6, MAX_SLOTS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // held while the copy is made
static const void *copied;
static uintptr_t copy[MAX_SLOTS];
static gp_table_load *drivers_load;

// A fatbin's wrapper (fatbinary_section.h); version 2 is one of several that are linked together.
struct wrapper { uint32_t magic, version; };
enum { FATBINC_MAGIC = 0x466243B1, FATBINC_VERSION = 1 };

// The last argument is unused, as far as is known. Options of the just-in-time compiler were never seen.
static CUresult load(CUmodule *module, const void *code, void *option, void *value, uintptr_t options, uintptr_t last)
{
	const struct wrapper *wrapper = code;
	if (!module || !wrapper || wrapper->magic != FATBINC_MAGIC || wrapper->version != FATBINC_VERSION || option || value)
		return drivers_load(module, code, option, value, options, last);
	return gp_load_by_table(drivers_load, module, code, options, last);
}

struct asker {
	const char *address[2]; // one in its code and one in its data
	bool found, checks;
};

static int visit_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	struct asker *asker = arg;
	bool inside = false;
	for (int i = 0; i < 2 * info->dlpi_phnum; i++) { // twice: is this the object, and does it contain that identifier
		const ElfW(Phdr) *h = &info->dlpi_phdr[i % info->dlpi_phnum];
		const char *begin = (const char *)(info->dlpi_addr + h->p_vaddr);
		if (h->p_type != PT_LOAD || !(h->p_flags & PF_R))
			continue;
		if (i < info->dlpi_phnum)
			for (int a = 0; a < 2; a++)
				inside |= asker->address[a] >= begin && asker->address[a] < begin + h->p_memsz;
		else if (inside && memmem(begin, h->p_filesz, check_table, sizeof check_table))
			asker->checks = true;
	}
	asker->found |= inside;
	return asker->checks;
}

// True: the object that asks is known, and makes no check.
static bool may_be_given(const void *caller, const void *identifier)
{
	struct asker asker = {.address = {caller, identifier}};
	dl_iterate_phdr(visit_object, &asker);
	return asker.found && !asker.checks;
}

static const void *with_our_load(const struct gp_hooks *hooks, const uintptr_t *table)
{
	const void *answer = table;
	pthread_mutex_lock(&lock);
	if (copied == table) {
		answer = copy;
	} else if (copied || table[0] % sizeof *table || table[0] <= LOAD * sizeof *table || table[0] > sizeof copy ||
		   !table[LOAD]) {
		char text[96];
		snprintf(text, sizeof text,
			 "the driver's table for CUDA runtimes up to 11.1, of %zu bytes, is not known", (size_t)table[0]);
		hooks->code_missed(text);
	} else {
		memcpy(copy, table, table[0]);
		drivers_load = (gp_table_load *)table[LOAD];
		copy[LOAD] = (uintptr_t)load;
		copied = table;
		answer = copy;
	}
	pthread_mutex_unlock(&lock);
	return answer;
}

CUresult cuGetExportTable(const void **table, const void *identifier)
{
	const void *caller = __builtin_return_address(0);
	CUresult result = REAL(cuGetExportTable)(table, identifier);
	const struct gp_hooks *hooks = gp_current_hooks();
	if (result == CUDA_SUCCESS && table && *table && identifier && hooks &&
	    memcmp(identifier, runtime_table, sizeof runtime_table) == 0 && hooks->code_wanted() &&
	    may_be_given(caller, identifier))
		*table = with_our_load(hooks, *table);
	return result;
}
