// nvtx.c - an NVTX injection library. NVTX 3 is part of each program that uses it, and loads the library that
// NVTX_INJECTION64_PATH names at the first call; this one is named by the library's constructor, where nobody
// else is. Types and numbers are those of nvtx3/nvtxDetail/nvtxTypes.h and nvToolsExt.h, version 3.
//
// Every function returns what it returns without a tool.
#define _GNU_SOURCE
#include "hints/nvtx.h"
#include "hints/source.h"
#include "preempt/process/process.h"

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
	NVTX_CBID_CORE_RangePushEx = 8,
	NVTX_CBID_CORE_RangePushA = 9,
	NVTX_CBID_CORE_RangePushW = 10,
	NVTX_CBID_CORE2_DomainRangeStartEx = 2,
	NVTX_CBID_CORE2_DomainRangePushEx = 4,
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

enum { NAME_BYTES = 64, STRINGS = 256, MOST_BELIEVED = 3 };
static char names[GP_RANGES][NAME_BYTES];
static _Atomic uint32_t name_count, believed[GP_RANGES];

void gp_nvtx_name(uint32_t i, const char *name)
{
	if (i >= GP_RANGES || strlen(name) >= NAME_BYTES)
		return;
	strcpy(names[i], name);
	gp_estimate[i].key = i + 1;
	name_count = i + 1;
}

static void begun(const char *name)
{
	uint32_t count = name_count;
	if (!gp_give || !name)
		return;
	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(names[i], name))
			continue;
		uint64_t now = gp_now_ns();
		gp_hint_fn *give = gp_give;
		// A range that the user named is trusted before anything is learnt, but not so often that wrong hints would
		// switch the source off.
		if (!gp_estimate[i].likely_ppm && believed[i] < MOST_BELIEVED && believed[i]++ < MOST_BELIEVED)
			give(GP_HINT_NVTX, now, 0, 1);
		gp_announce(GP_HINT_NVTX, i, i + 1, GP_FDS, 0, UINT32_MAX, now);
		return;
	}
}

static void begun_wide(const wchar_t *name)
{
	char narrow[NAME_BYTES];
	size_t i = 0;
	if (!name || !name_count)
		return;
	for (; i < sizeof narrow - 1 && name[i]; i++)
		narrow[i] = name[i] < 128 ? (char)name[i] : '?';
	narrow[i] = 0;
	if (!name[i])
		begun(narrow);
}

// Strings that programs registered; the handle is the address of the copy.
static _Atomic(char *) registered[STRINGS];

static void *register_string(const char *text)
{
	if (!text || strlen(text) >= NAME_BYTES)
		return NULL;
	for (int i = 0; i < STRINGS; i++) {
		char *known = registered[i];
		if (!known) {
			char *copy = strdup(text);
			if (copy && __atomic_compare_exchange_n((char **)&registered[i], &known, copy, false,
								__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				return copy;
			free(copy);
		}
		if (known && !strcmp(known, text))
			return known;
	}
	return NULL;
}

static bool is_registered(const void *handle)
{
	for (int i = 0; i < STRINGS && registered[i]; i++)
		if (registered[i] == handle)
			return true;
	return false;
}

static void begun_with(const struct attributes *a)
{
	if (!a || a->size < sizeof *a)
		return;
	switch (a->message_type) {
	case NVTX_MESSAGE_TYPE_ASCII: begun(a->message); break;
	case NVTX_MESSAGE_TYPE_UNICODE: begun_wide(a->message); break;
	case NVTX_MESSAGE_TYPE_REGISTERED:
		if (a->message && is_registered(a->message))
			begun(a->message);
	}
}

static int push(const char *name)
{
	begun(name);
	return NVTX_NO_PUSH_POP_TRACKING;
}
static int push_wide(const wchar_t *name)
{
	begun_wide(name);
	return NVTX_NO_PUSH_POP_TRACKING;
}
static int push_with(const struct attributes *a)
{
	begun_with(a);
	return NVTX_NO_PUSH_POP_TRACKING;
}
static uint64_t start(const char *name)
{
	begun(name);
	return 0;
}
static uint64_t start_wide(const wchar_t *name)
{
	begun_wide(name);
	return 0;
}
static uint64_t start_with(const struct attributes *a)
{
	begun_with(a);
	return 0;
}
static int domain_push(void *domain, const struct attributes *a)
{
	(void)domain;
	return push_with(a);
}
static uint64_t domain_start(void *domain, const struct attributes *a)
{
	(void)domain;
	return start_with(a);
}
static void *domain_register(void *domain, const char *text)
{
	(void)domain;
	return register_string(text);
}

static void *domain_register_wide(void *domain, const wchar_t *text)
{
	char narrow[NAME_BYTES];
	size_t i = 0;
	(void)domain;
	for (; text && i < sizeof narrow && text[i]; i++)
		narrow[i] = text[i] < 128 ? (char)text[i] : '?';
	if (!text || i == sizeof narrow)
		return NULL;
	narrow[i] = 0;
	return register_string(narrow);
}

static const struct {
	int module;
	unsigned id;
	void *function;
} functions[] = {
	{NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeStartEx, start_with},
	{NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeStartA, start},
	{NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangeStartW, start_wide},
	{NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushEx, push_with},
	{NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushA, push},
	{NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_RangePushW, push_wide},
	{NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangeStartEx, domain_start},
	{NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRangePushEx, domain_push},
	{NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRegisterStringA, domain_register},
	{NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_DomainRegisterStringW, domain_register_wide},
};

PUBLIC int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t));

// In a level above the lowest. The names of ranges are not known before CUDA is initialised.
static bool may_want_ranges(void)
{
	const char *priority = getenv("GPREEMPT_PRIORITY");
	if (gp_give)
		return name_count;
	return priority && (!strcmp(priority, "lc") || (*priority >= '0' && *priority < '7' && !priority[1]));
}

// Programs may find it without the variable too, in the library's exports, and are then to be as without it.
PUBLIC int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t))
{
	if (!get_export_table || !may_want_ranges())
		return 0;
	const struct callbacks *callbacks = get_export_table(NVTX_ETID_CALLBACKS);
	if (!callbacks || callbacks->struct_size < sizeof *callbacks)
		return 0;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void ***table = NULL; // of pointers to function pointers
		unsigned size = 0;
		if (callbacks->GetModuleFunctionTable(functions[i].module, &table, &size) && table &&
		    functions[i].id < size && table[functions[i].id])
			*table[functions[i].id] = functions[i].function;
	}
	return 1;
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
PUBLIC int (*InitializeInjectionNvtx2_fnptr)(const void *(*)(uint32_t)) = InitializeInjectionNvtx2;
