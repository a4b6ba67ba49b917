// image.c - the images that modules are made from: kernels and variables of a cubin, or of a fatbin's cubin that suits the machine. Other
// images (compressed ones, PTX, any text) are not read: they have the kernels of kernels.c.
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SM (10 * machine.cc_major + machine.cc_minor)
#define LIMIT (1ull << 30) // of an image whose length is not given: how far its headers may reach

enum { // elf.h, and what cuobjdump shows
	SHT_SYMTAB = 2,
	SHT_NOBITS = 8,
	SHF_MERCURY = 0x10000000, // sections of the second form of the code
	EM_CUDA = 190,
	STT_OBJECT = 1,
	STT_FUNC = 2,
	STO_CUDA_ENTRY = 0x10,
	OSABI_CUDA12 = 0x33,
	OSABI_CUDA13 = 0x41,
	EIFMT_SVAL = 4,
	EIATTR_KPARAM_INFO = 0x17,
	EIATTR_KPARAM_INFO_V2 = 0x45,
};
#define FATBIN_WRAPPER 0x466243b1u // fatbinary_section.h
#define FATBIN 0xba55ed50u
#define FATBIN_COMPRESSED 0xa000u // LZ4 or zstd
#define MAX_PARAMETERS 1024

static uint16_t u16(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static uint32_t u32(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static uint64_t u64(const uint8_t *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static void *need(void *p)
{
	if (!p)
		abort();
	return p;
}

// ---- cubins

struct cubin {
	const uint8_t *p;
	uint64_t bytes;
	const uint8_t *sections;
	unsigned count;
	const uint8_t *names; // of sections
	uint64_t names_bytes;
};
struct section {
	const char *name;
	uint32_t type, link;
	uint64_t flags, bytes;
	const uint8_t *data; // NULL: none in the file
};

static const char *string_at(const uint8_t *table, uint64_t bytes, uint32_t at)
{
	return table && at < bytes && memchr(table + at, 0, bytes - at) ? (const char *)table + at : NULL;
}

static bool section_at(const struct cubin *c, unsigned i, struct section *s)
{
	if (i >= c->count)
		return false;
	const uint8_t *h = c->sections + 64 * (uint64_t)i;
	uint64_t at = u64(h + 24);
	*s = (struct section){.type = u32(h + 4), .flags = u64(h + 8), .bytes = u64(h + 32), .link = u32(h + 40)};
	if (s->type != 0 && s->type != SHT_NOBITS) {
		if (at > c->bytes || s->bytes > c->bytes - at)
			return false;
		s->data = c->p + at;
	}
	if (c->names && !(s->name = string_at(c->names, c->names_bytes, u32(h))))
		return false;
	return true;
}

static bool open_cubin(struct cubin *c, const uint8_t *p, uint64_t bytes)
{
	if (bytes < 64 || p[4] != 2 || u16(p + 18) != EM_CUDA || u16(p + 58) != 64)
		return false;
	uint64_t at = u64(p + 40);
	*c = (struct cubin){.p = p, .bytes = bytes, .count = u16(p + 60)};
	if (at > bytes || 64ull * c->count > bytes - at)
		return false;
	c->sections = p + at;
	struct section names;
	if (!section_at(c, u16(p + 62), &names) || !names.data)
		return false;
	c->names = names.data;
	c->names_bytes = names.bytes;
	return true;
}

static int cubin_sm(const uint8_t *p)
{
	uint32_t flags = u32(p + 48);
	return p[7] == OSABI_CUDA12 ? (int)(flags & 0xff) : p[7] == OSABI_CUDA13 ? (int)(flags >> 8 & 0xff) : 0;
}

static bool suits(int sm) { return sm / 10 == machine.cc_major && sm <= SM; }

// Fills in the parameters that .nv.info.NAME lists, in any order.
static bool read_parameters(struct definition *d, const struct section *info)
{
	bool seen[MAX_PARAMETERS] = {false};
	int found = 0, highest = -1;
	d->parameter = need(calloc(MAX_PARAMETERS, sizeof *d->parameter));
	for (uint64_t at = 0; at < info->bytes;) {
		if (info->bytes - at < 4)
			return false;
		const uint8_t *a = info->data + at;
		uint64_t more = a[0] == EIFMT_SVAL ? u16(a + 2) : 0;
		if (a[0] < 1 || a[0] > EIFMT_SVAL || more > info->bytes - at - 4)
			return false;
		at += 4 + more;
		if (a[0] != EIFMT_SVAL || (a[1] != EIATTR_KPARAM_INFO && a[1] != EIATTR_KPARAM_INFO_V2))
			continue;
		unsigned ordinal = more == 12 ? u16(a + 8) : MAX_PARAMETERS;
		if (ordinal >= MAX_PARAMETERS || seen[ordinal])
			return false;
		uint32_t size = a[1] == EIATTR_KPARAM_INFO ? u32(a + 12) >> 18 : u32(a + 12) & 0xffff;
		d->parameter[ordinal] = (struct parameter){u16(a + 10), (uint16_t)size};
		if (u16(a + 10) + size > d->bytes)
			d->bytes = u16(a + 10) + size;
		seen[ordinal] = true;
		found++;
		highest = (int)ordinal > highest ? (int)ordinal : highest;
	}
	d->parameters = found;
	return highest == found - 1;
}

// Finds the kernel's behaviour by its name and parameters; a hidden parameter may follow these.
static void recognise(struct definition *d)
{
	const struct kernel *k = kernel_find(d->name);
	bool same = k && d->parameters >= k->parameters;
	for (int i = 0; same && i < k->parameters; i++)
		same = d->parameter[i].size == k->size[i];
	d->guarded = same && d->parameters == k->parameters + 1 && d->parameter[k->parameters].size == 8;
	d->kernel = same && (d->guarded || d->parameters == k->parameters) ? k : &kernel_unknown;
}

static bool read_kernel(struct image *image, const struct cubin *c, const char *name)
{
	struct definition *d = &image->definition[image->definitions++];
	d->name = need(strdup(name));
	struct section s;
	for (unsigned i = 0; i < c->count; i++)
		if (section_at(c, i, &s) && s.data && strncmp(s.name, ".nv.info.", 9) == 0 &&
		    strcmp(s.name + 9, name) == 0) {
			if (!read_parameters(d, &s))
				return false;
			break;
		}
	recognise(d);
	return true;
}

static bool read_variable(struct image *image, const struct cubin *c, const char *name, const uint8_t *symbol)
{
	struct section s;
	uint64_t at = u64(symbol + 8), bytes = u64(symbol + 16);
	if (!section_at(c, u16(symbol + 6), &s) || strncmp(s.name, ".nv.global", 10) != 0 || !bytes)
		return true; // it has no address, or is defined elsewhere
	if (at > s.bytes || bytes > s.bytes - at)
		return false;
	struct variable *v = &image->variable[image->variables++];
	*v = (struct variable){.name = need(strdup(name)), .bytes = bytes};
	if (s.data) {
		v->initial = need(malloc(bytes));
		memcpy(v->initial, s.data + at, bytes);
	}
	return true;
}

static CUresult read_cubin(struct image *image, const uint8_t *p, uint64_t bytes)
{
	struct cubin c;
	struct section table, names;
	if (!open_cubin(&c, p, bytes))
		return CUDA_ERROR_INVALID_IMAGE;
	if (!suits(cubin_sm(p)))
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	unsigned i = 0;
	do
		if (!section_at(&c, i, &table))
			return CUDA_ERROR_INVALID_IMAGE;
	while ((table.type != SHT_SYMTAB || (table.flags & SHF_MERCURY)) && ++i < c.count);
	if (table.type != SHT_SYMTAB || !section_at(&c, table.link, &names))
		return CUDA_ERROR_INVALID_IMAGE;
	uint64_t n = table.bytes / 24;
	image->read = true;
	image->definition = need(calloc(n + 1, sizeof *image->definition));
	image->variable = need(calloc(n + 1, sizeof *image->variable));
	for (uint64_t k = 0; k < n; k++) {
		const uint8_t *symbol = table.data + 24 * k;
		const char *name = string_at(names.data, names.bytes, u32(symbol));
		int type = symbol[4] & 15;
		bool good = name != NULL;
		if (good && type == STT_FUNC && (symbol[5] & STO_CUDA_ENTRY))
			good = read_kernel(image, &c, name);
		else if (good && type == STT_OBJECT)
			good = read_variable(image, &c, name, symbol);
		if (!good)
			return CUDA_ERROR_INVALID_IMAGE;
	}
	return CUDA_SUCCESS;
}

// ---- fatbins: a header {u32 magic, u16 version, u16 header size, u64 size} and entries. Each entry has a header {u16 kind, ..., u32
// header size at 4, u64 stored at 8, u32 sm at 28, u64 flags at 40}.

// Finds the entry that suits the machine best, and one with PTX; NULL where there is none.
static CUresult look_through(const uint8_t *p, uint64_t bytes, const uint8_t **best, const uint8_t **ptx)
{
	*best = *ptx = NULL;
	if (bytes < 16 || u16(p + 6) != 16 || u64(p + 8) > bytes - 16)
		return CUDA_ERROR_INVALID_IMAGE;
	const uint8_t *end = p + 16 + u64(p + 8);
	for (p += 16; p != end;) {
		uint64_t left = (uint64_t)(end - p), header = left >= 64 ? u32(p + 4) : 0;
		if (header < 64 || header > left || u64(p + 8) > left - header)
			return CUDA_ERROR_INVALID_IMAGE;
		if (u16(p) == 1)
			*ptx = p;
		int sm = (int)u32(p + 28);
		if (u16(p) == 2 && suits(sm) && (!*best || sm > (int)u32(*best + 28)))
			*best = p;
		p += header + u64(p + 8);
	}
	return CUDA_SUCCESS;
}

const char *fatbin_ptx(const void *fatbin, uint64_t *bytes)
{
	const uint8_t *best, *ptx;
	if (*bytes < 4 || u32(fatbin) != FATBIN || look_through(fatbin, *bytes, &best, &ptx) != CUDA_SUCCESS || best ||
	    !ptx || u64(ptx + 40) & FATBIN_COMPRESSED)
		return NULL;
	*bytes = u64(ptx + 8);
	return (const char *)ptx + u32(ptx + 4);
}

static CUresult read_fatbin(struct image *image, const uint8_t *p, uint64_t bytes)
{
	const uint8_t *best, *ptx;
	CUresult r = look_through(p, bytes, &best, &ptx);
	if (r != CUDA_SUCCESS)
		return r;
	if (!best)
		return ptx ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
	if (u64(best + 40) & FATBIN_COMPRESSED)
		return CUDA_SUCCESS;
	return read_cubin(image, best + u32(best + 4), u64(best + 8));
}

// ----

static bool begins(const void *data, uint64_t bytes, uint32_t magic)
{ // reads no further than the first byte that differs, which may end a string
	for (unsigned i = 0; i < 4; i++)
		if (i >= bytes || ((const uint8_t *)data)[i] != (uint8_t)(magic >> (8 * i)))
			return false;
	return true;
}

static void by_name(struct image *image)
{
	int n = 0;
	while (kernel_at(n))
		n++;
	image->definition = need(calloc((size_t)n + 1, sizeof *image->definition));
	image->variable = need(calloc(1, sizeof *image->variable));
	*image->variable = (struct variable){.name = need(strdup("sim_counter")), .bytes = 8};
	image->variables = 1;
	for (image->definitions = 0; image->definitions < n; image->definitions++) {
		struct definition *d = &image->definition[image->definitions];
		d->kernel = kernel_at(image->definitions);
		d->name = need(strdup(d->kernel->name));
		d->parameters = d->kernel->parameters;
		d->parameter = need(calloc((size_t)d->parameters + 1, sizeof *d->parameter));
		for (int i = 0; i < d->parameters; i++) {
			unsigned size = d->kernel->size[i];
			d->bytes = (d->bytes + size - 1) / size * size;
			d->parameter[i] = (struct parameter){(uint16_t)d->bytes, (uint16_t)size};
			d->bytes += size;
		}
	}
}

struct image *image_read(const void *data, uint64_t bytes, CUresult *error)
{
	struct image *image = need(calloc(1, sizeof *image));
	bytes = bytes ? bytes : LIMIT;
	*error = CUDA_SUCCESS;
	if (begins(data, bytes, FATBIN_WRAPPER) && bytes >= 24) {
		data = (const void *)u64((const uint8_t *)data + 8); // behind magic and version
		bytes = LIMIT;
	}
	if (!data)
		*error = CUDA_ERROR_INVALID_IMAGE;
	else if (begins(data, bytes, 0x464c457f)) // \x7fELF
		*error = read_cubin(image, data, bytes);
	else if (begins(data, bytes, FATBIN))
		*error = read_fatbin(image, data, bytes);
	if (*error != CUDA_SUCCESS) {
		image_free(image);
		return NULL;
	}
	if (!image->read)
		by_name(image);
	return image;
}

void image_free(struct image *image)
{
	for (int i = 0; i < image->definitions; i++) {
		free(image->definition[i].name);
		free(image->definition[i].parameter);
	}
	for (int i = 0; i < image->variables; i++) {
		free(image->variable[i].name);
		free(image->variable[i].initial);
	}
	free(image->definition);
	free(image->variable);
	free(image);
}

char *image_file(const char *path, uint64_t *bytes)
{
	FILE *f = fopen(path, "re");
	if (!f)
		return NULL;
	char *data = NULL;
	size_t room = 0;
	struct stat is;
	*bytes = 0;
	do {
		room = room ? 2 * room : fstat(fileno(f), &is) ? 65536 : (size_t)is.st_size + 65536;
		char *more = realloc(data, room);
		if (!more)
			abort();
		data = more;
		*bytes += fread(data + *bytes, 1, room - *bytes, f);
	} while (*bytes == room);
	bool failed = ferror(f);
	fclose(f);
	if (!failed && *bytes)
		return data;
	free(data);
	return NULL;
}
