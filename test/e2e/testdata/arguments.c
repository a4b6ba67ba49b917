// arguments.c - calls each intercepted function with arguments at and beyond their bounds, and writes down what it answers.
//
// rows.h, which the test generates from exports/table.h, has a struct row for each function. A call is a row and a choice of a value for
// each of its parameters: all usual; one of them odd, or all numbers, or addresses; all null, all ones; some odd at random. So each
// function gets each odd value of each parameter. Calls have numbers, the same in each process.
//
//   arguments RESULTS IMAGE FIRST SECONDS       from that call on, but for those whose result is SKIP; each may take SECONDS.
//   arguments RESULTS IMAGE FIRST SECONDS once  that call alone.
//   arguments - IMAGE N                 prints call N.
//
// Ends with 0 after the last call. Ends with AGAIN where the process can make no more calls: the test goes on in another one.
#define _GNU_SOURCE
#include "preempt/driver/cuda.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct gp_ipc_handle CUipcMemHandle, CUipcEventHandle;
typedef struct gp_location CUmemLocation;
typedef struct gp_egl_frame CUeglFrame;

enum class {
	CONTEXT,
	STREAM,
	EVENT,
	FUNCTION,
	MODULE,
	LIBRARY,
	GRAPH,
	INSTANCE,
	HANDLES,
	DEVICE = HANDLES,
	ADDRESS,
	INTEGER,
	POINTER,
	VALUE
};
struct parameter {
	enum class class;
	const char *name;
	unsigned bytes;
};
struct row {
	const char *name;
	bool simulated; // by the simulated driver
	int (*call)(void *function, const uint64_t *);
	unsigned count;
	const struct parameter *parameter;
};
#include "rows.h"
enum {
	ROWS = sizeof rows / sizeof *rows,
	MOST = 16,
	VALUES = 256,
	AT_RANDOM = 4,
	TOGETHER = 3,   // changes of one structure in one call
	CAPTURED = 900, // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the call began a capture

	CALLS = 1 << 15,
	AGAIN = 9,
};

enum state { NOT_MADE, BEGUN, MADE, SKIP };
struct result {
	uint32_t state, row;
	int32_t status, after; // after: of a synchronisation behind a call that succeeded; -1: it could take for ever
	uint64_t written;      // a sum of what is behind the pointers now
};

static void *driver;
#define CALL(name, parameters, ...) ((CUresult(*) parameters)dlsym(driver, #name))(__VA_ARGS__)
#define NEED(name, parameters, ...) \
	do { \
		CUresult r_ = CALL(name, parameters, __VA_ARGS__); \
		if (r_) { \
			fprintf(stderr, "%s: %d\n", #name, r_); \
			_Exit(AGAIN); \
		} \
	} while (0)

// The objects that calls are about. Each kind of handle has three: of another context, or another one at least; destroyed; alive.
enum { OTHER, GONE, ALIVE, STATES };
static struct {
	void *handle[HANDLES][STATES];
	void *kernel, *node, *pool, *host, *registered, *image;
	size_t image_bytes;
	CUdeviceptr memory, freed, large, pooled, reserved, mapped;
	unsigned long long physical;
	uint32_t *pages; // pinned host memory
} is;
enum { BYTES = 4096, LARGE = 8 << 20, GRANULE = 2 << 20, PAGE = 4096 };

// Memory behind pointers: for each parameter a place of its own, then zeros, ones, and the end of what is mapped.
enum { ZEROS = MOST, ONES, END, PLACES };
static char *place[PLACES];

// The memory of a handle that is destroyed stays, so that it is no other handle soon: who destroys it frees nothing meanwhile.
void __libc_free(void *);
static _Atomic bool keeps;
void free(void *p)
{
	if (!keeps)
		__libc_free(p);
}

static void *room(void)
{
	char *at = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || mprotect(at + PAGE, PAGE, PROT_READ | PROT_WRITE))
		_Exit(1);
	return at + PAGE;
}

static void *read_image(const char *path)
{
	struct stat s;
	int fd = open(path, O_RDONLY);
	if (fd < 0 || fstat(fd, &s))
		_Exit(1);
	is.image_bytes = (size_t)s.st_size;
	void *at = mmap(NULL, is.image_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	return at;
}

// Structures that parameters point to.
static struct gp_launch_attribute attribute[2];
static struct gp_launch_config config;
static struct gp_copy_2d plane;
static struct gp_copy_3d space;
static struct gp_kernel_node kernel_node;
static struct gp_graph_node graph_node;
static struct gp_allocation_properties properties;
static struct {
	struct gp_location location;
	int flags;
} access_to_own;
static struct {
	size_t width, height;
	int format;
	unsigned channels;
} array = {64, 1, 1, 1};
static struct {
	struct gp_pool_properties known;
	char rest[64];
} pool_properties;
static uint64_t many[BYTES / 8];
static uint32_t operand = 1;
static int pointer_attributes[1] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
static void *arguments[8], *pointers[1];
static CUdeviceptr addresses[1];
static size_t sizes[1] = {64};
static char host[BYTES];

static const char *path_of_image;
static void nothing(void *unused) { (void)unused; }

// Which of what is permanent is there? Made once for each process.
static void begin(void)
{
	void **contexts = is.handle[CONTEXT];
	NEED(cuInit, (unsigned), 0);
	NEED(cuCtxCreate_v2, (void **, unsigned, int), &contexts[GONE], 0, 0);
	NEED(cuCtxCreate_v2, (void **, unsigned, int), &contexts[OTHER], 0, 0);
	NEED(cuStreamCreate, (void **, unsigned), &is.handle[STREAM][OTHER], 1);
	NEED(cuEventCreate, (void **, unsigned), &is.handle[EVENT][OTHER], 0);
	NEED(cuModuleLoadData, (void **, const void *), &is.handle[MODULE][OTHER], is.image);
	NEED(cuModuleGetFunction, (void **, void *, const char *), &is.handle[FUNCTION][OTHER],
	     is.handle[MODULE][OTHER], "sim_increment");
	NEED(cuDevicePrimaryCtxRetain, (void **, int), &contexts[ALIVE], 0);
	NEED(cuCtxSetCurrent, (void *), contexts[ALIVE]);
	keeps = true;
	NEED(cuCtxDestroy_v2, (void *), contexts[GONE]);
	keeps = false;
	NEED(cuGraphCreate, (void **, unsigned), &is.handle[GRAPH][OTHER], 0);
	NEED(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long), &is.handle[INSTANCE][OTHER],
	     is.handle[GRAPH][OTHER], 0);
	NEED(cuMemHostAlloc, (void **, size_t, unsigned), (void **)&is.pages, BYTES, 0);
	is.registered = room();
}

static void make(enum class class, int state)
{
	void **out = &is.handle[class][state], *function = is.handle[FUNCTION][ALIVE];
	switch (class) {
	case STREAM: NEED(cuStreamCreate, (void **, unsigned), out, 0); break;
	case EVENT: NEED(cuEventCreate, (void **, unsigned), out, 0); break;
	case MODULE: NEED(cuModuleLoadData, (void **, const void *), out, is.image); break;
	case FUNCTION:
		NEED(cuModuleGetFunction, (void **, void *, const char *), out, is.handle[MODULE][state], "sim_increment");
		break;
	case LIBRARY:
		NEED(cuLibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned),
		     out, is.image, NULL, NULL, 0, NULL, NULL, 0);
		break;
	case GRAPH:
		NEED(cuGraphCreate, (void **, unsigned), out, 0);
		kernel_node = (struct gp_kernel_node){
			.function = function, .grid = {1, 1, 1}, .block = {1, 1, 1}, .parameters = arguments};
		NEED(cuGraphAddKernelNode_v2, (void **, void *, const void *, size_t, const void *), &is.node, *out,
		     NULL, 0, &kernel_node);
		break;
	case INSTANCE:
		NEED(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long), out, is.handle[GRAPH][state], 0);
		break;
	default: break;
	}
}

static void end(enum class class, int state)
{
	void *handle = is.handle[class][state];
	switch (class) {
	case STREAM: CALL(cuStreamDestroy_v2, (void *), handle); break;
	case EVENT: CALL(cuEventDestroy_v2, (void *), handle); break;
	case MODULE: CALL(cuModuleUnload, (void *), handle); break;
	case LIBRARY: CALL(cuLibraryUnload, (void *), handle); break;
	case GRAPH: CALL(cuGraphDestroy, (void *), handle); break;
	case INSTANCE: CALL(cuGraphExecDestroy, (void *), handle); break;
	default: break;
	}
}

// Made anew behind each call that succeeded.
static void prepare(bool first)
{
	static const enum class order[] = {STREAM, EVENT, MODULE, FUNCTION, LIBRARY, GRAPH, INSTANCE};
	enum { KINDS = sizeof order / sizeof *order };
	void *captured;
	CUdeviceptr *all[] = {&is.memory, &is.freed, &is.large};
	if (!first) {
		CALL(cuCtxSetCurrent, (void *), is.handle[CONTEXT][ALIVE]);
		CALL(cuStreamEndCapture, (void *, void **), is.handle[STREAM][ALIVE], &captured);
		CALL(cuStreamEndCapture, (void *, void **), (void *)2, &captured);
		for (int i = KINDS; i-- > 0;)
			if (order[i] != MODULE && order[i] != LIBRARY)
				end(order[i], ALIVE);
		CALL(cuMemUnmap, (CUdeviceptr, size_t), is.mapped, GRANULE);
		CALL(cuMemAddressFree, (CUdeviceptr, size_t), is.mapped, GRANULE);
		CALL(cuMemAddressFree, (CUdeviceptr, size_t), is.reserved, GRANULE);
		CALL(cuMemRelease, (unsigned long long), is.physical);
		CALL(cuMemFree_v2, (CUdeviceptr), is.memory);
		CALL(cuMemFree_v2, (CUdeviceptr), is.large);
		CALL(cuMemFreeAsync, (CUdeviceptr, void *), is.pooled, NULL);
		CALL(cuMemPoolDestroy, (void *), is.pool);
		CALL(cuMemFreeHost, (void *), is.host);
		CALL(cuMemHostUnregister, (void *), is.registered);
	}
	for (int i = 0; i < 3; i++)
		NEED(cuMemAlloc_v2, (CUdeviceptr *, size_t), all[i], i < 2 ? BYTES : LARGE);
	arguments[0] = &is.memory;
	arguments[1] = &operand;
	arguments[2] = &operand;
	for (int i = 0; i < KINDS; i++) {
		bool permanent = order[i] == MODULE || order[i] == LIBRARY || order[i] == FUNCTION;
		if (first || !permanent || (is.handle[order[i]][ALIVE] == NULL)) {
			if (!first || order[i] == FUNCTION) {
				make(order[i], ALIVE);
				continue;
			}
			make(order[i], GONE);
			make(order[i], ALIVE);
		}
	}
	NEED(cuLibraryGetKernel, (void **, void *, const char *), &is.kernel, is.handle[LIBRARY][ALIVE], "sim_increment");
	NEED(cuMemFree_v2, (CUdeviceptr), is.freed);
	properties = (struct gp_allocation_properties){.type = 1, .location_type = 1};
	access_to_own = (__typeof__(access_to_own)){{1, 0}, 3};
	NEED(cuMemCreate, (unsigned long long *, size_t, const void *, unsigned long long), &is.physical, GRANULE,
	     &properties, 0);
	NEED(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long), &is.reserved,
	     GRANULE, 0, 0, 0);
	NEED(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long), &is.mapped, GRANULE,
	     0, 0, 0);
	NEED(cuMemMap, (CUdeviceptr, size_t, size_t, unsigned long long, unsigned long long), is.mapped, GRANULE, 0,
	     is.physical, 0);
	NEED(cuMemSetAccess, (CUdeviceptr, size_t, const void *, size_t), is.mapped, GRANULE, &access_to_own, 1);
	pool_properties.known = (struct gp_pool_properties){.type = 1, .location = {1, 0}};
	NEED(cuMemPoolCreate, (void **, const void *), &is.pool, &pool_properties);
	NEED(cuMemAllocAsync, (CUdeviceptr *, size_t, void *), &is.pooled, 64, NULL);
	NEED(cuMemHostAlloc, (void **, size_t, unsigned), &is.host, BYTES, 0);
	NEED(cuMemHostRegister_v2, (void *, size_t, unsigned), is.registered, PAGE, 0);
	NEED(cuCtxSynchronize, (void), );
	if (!first)
		return;
	keeps = true;
	for (int i = KINDS; i-- > 0;)
		end(order[i], GONE);
	NEED(cuCtxSynchronize, (void), );
	keeps = false;
}

static bool named(const struct row *r, const char *begin) { return !strncmp(r->name, begin, strlen(begin)); }

// The structures as they are in a call that nothing is wrong with.
static void fill_in(void)
{
	CUfunction f = is.handle[FUNCTION][ALIVE];
	struct gp_copy_side side = {.memory_type = CU_MEMORYTYPE_DEVICE, .device = is.memory, .pitch = 64};
	struct gp_copy_3d_side side_3d = {
		.memory_type = CU_MEMORYTYPE_DEVICE, .device = is.memory, .pitch = 64, .height = 4};
	attribute[0] = (struct gp_launch_attribute){.id = CU_LAUNCH_ATTRIBUTE_PRIORITY};
	attribute[1] = (struct gp_launch_attribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE};
	config = (struct gp_launch_config){.grid = {1, 1, 1},
					   .block = {1, 1, 1},
					   .stream = is.handle[STREAM][ALIVE],
					   .attributes = attribute,
					   .attribute_count = 2};
	plane = (struct gp_copy_2d){.from = side, .to = side, .width_bytes = 16, .height = 4};
	space = (struct gp_copy_3d){.from = side_3d, .to = side_3d, .width_bytes = 16, .height = 2, .depth = 2};
	kernel_node =
		(struct gp_kernel_node){.function = f, .grid = {1, 1, 1}, .block = {1, 1, 1}, .parameters = arguments};
	graph_node = (struct gp_graph_node){.type = 0, .of.kernel = kernel_node};
	properties = (struct gp_allocation_properties){.type = 1, .location_type = 1};
	access_to_own = (__typeof__(access_to_own)){{1, 0}, 3};
	arguments[0] = &is.memory;
	arguments[1] = arguments[2] = &operand;
	addresses[0] = is.memory;
	sizes[0] = 64;
	pointers[0] = many;
	pointer_attributes[0] = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
}

// The target of a pointer in such a call, and how many of its bytes are worth a change; NULL: a place of the parameter's own.
static void *behind(const struct row *r, const char *name, size_t *bytes)
{
	const struct {
		const char *row, *name;
		void *is;
		size_t bytes;
	} table[] = {
		{"", "config", &config, sizeof config},
		{"cuMemcpy2D", "pCopy", &plane, sizeof plane},
		{"cuMemcpy3D", "pCopy", &space, sizeof space},
		{"", "nodeParams", strstr(r->name, "Kernel") ? (void *)&kernel_node : &graph_node, sizeof kernel_node},
		{"cuMemCreate", "prop", &properties, sizeof properties},
		{"cuMemSetAccess", "desc", &access_to_own, sizeof access_to_own},
		{"", "pAllocateArray", &array, sizeof array},
		{"", "poolProps", &pool_properties, sizeof pool_properties},
		{"", "kernelParams", arguments, 3 * sizeof *arguments},
		{"", "extra", NULL, 0},
		{"", "image", is.image, 0},
		{"", "code", is.image, 0},
		{"", "fatCubin", is.image, 0},
		{"", "fname", (void *)path_of_image, 0},
		{"", "fileName", (void *)path_of_image, 0},
		{"cuGetProcAddress", "symbol", "cuMemAlloc", 0},
		{"", "name", "sim_increment", 0},
		{"", "srcHost", host, 0},
		{"", "dstHost", host, 0},
		{"", "dsts", addresses, sizeof addresses},
		{"", "srcs", addresses, sizeof addresses},
		{"", "dptrs", addresses, sizeof addresses},
		{"", "sizes", sizes, sizeof sizes},
		{"cuPointerGetAttributes", "attributes", pointer_attributes, sizeof pointer_attributes},
		{"cuPointerGetAttributes", "data", pointers, sizeof pointers},
		{"", "hNode", is.node, 0},
		{"", "pool", is.pool, 0},
		{"cuMemFreeHost", "p", is.host, 0},
		{"cuMemHostUnregister", "p", is.registered, 0},
		{"", "fn", nothing, 0},
		{"", "callback", nothing, 0},
		{"cuMemRetainAllocationHandle", "addr", (void *)(uintptr_t)is.mapped, 0},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (named(r, table[i].row) && !strcmp(name, table[i].name) &&
		    (strcmp(name, "pool") || strcmp(r->name, "cuMemPoolCreate"))) {
			*bytes = table[i].bytes;
			return table[i].is ? table[i].is : (void *)1;
		}
	*bytes = 0;
	return NULL;
}

static uint64_t usual_number(const struct row *r, const char *name)
{
	static const struct {
		const char *row, *name;
		uint64_t is;
	} table[] = {
		{"", "flags", 0},
		{"", "Flags", 0},
		{"", "handle", 0},
		{"", "sharedMemBytes", 0},
		{"", "attribute", 2},
		{"", "attrib", 8},
		{"", "cudaVersion", 12000},
		{"", "paramIndex", 0},
		{"", "numOptions", 0},
		{"", "numJitOptions", 0},
		{"", "numLibraryOptions", 0},
		{"", "numDependencies", 0},
		{"", "priority", 0},
		{"", "value", 0},
		{"", "val", 0},
		{"", "mode", 0},
		{"", "ElementSizeBytes", 4},
		{"", "Height", 2},
		{"", "Width", 4},
		{"", "dstPitch", 64},
		{"", "N", 16},
		{"", "ByteCount", 64},
		{"", "bytesize", 4096},
		{"", "offset", 0},
		{"cuMem", "size", GRANULE},
		{"cuMemcpy", "size", 64},
		{"", "handleType", 1},
		{"", "mcOffset", 0},
		{"", "numKernels", 1},
		{"", "numParams", 0},
		{"", "dynamicSMemSize", 0},
		{"", "uc", 1},
		{"", "us", 1},
		{"", "ui", 1},
	};
	if (!strcmp(name, "handle") || !strcmp(name, "memHandle"))
		return is.physical;
	if (named(r, "cuMemcpy") && !strcmp(name, "size"))
		return 64;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (named(r, table[i].row) && !strcmp(name, table[i].name))
			return table[i].is;
	return 1;
}

static uint64_t usual_address(const struct row *r)
{
	return named(r, "cuMemMap")                                                               ? is.reserved :
	       named(r, "cuMemUnmap") || named(r, "cuMemSetAccess") || named(r, "cuMemGetAccess") ? is.mapped :
	       named(r, "cuMemAddressFree")                                                       ? is.reserved :
	       named(r, "cuMemFreeAsync")                                                         ? is.pooled :
												    is.memory;
}

#define WILD ((void *)16)

// A change of a structure that a pointer points to.
struct change {
	uint32_t *word;
	uint32_t to;
	unsigned words;
};

// The n-th change of a structure: a word of 32 bits, or two. Of what looks like an address only NULL is made: another one is wild.
static bool change_of(uint32_t *structure, size_t bytes, unsigned n, struct change *change)
{
	static const struct change to[] = {
		{NULL, 0, 2}, {NULL, ~0u, 2}, {NULL, 0x80000000, 1}, {NULL, 3, 1}, {NULL, 0xffffffff, 1}};
	enum { TO = sizeof to / sizeof *to };
	for (size_t word = 0; word + 1 < bytes / 4; word++) {
		bool address = word % 2 ?
				       structure[word] && structure[word] < 1 << 16 && structure[word - 1] > 1 << 12 :
				       structure[word + 1] && structure[word + 1] < 1 << 16 && structure[word] > 1 << 12;
		for (unsigned i = word % 2 ? 2 : 0; i < (address ? word % 2 ? 0 : 1 : TO); i++)
			if (n-- == 0) {
				*change = to[i];
				change->word = structure + word;
				return true;
			}
	}
	return false;
}

// The n-th value of a parameter, 0: the usual one. False: it has no more.
static bool value_of(const struct row *r, unsigned at, unsigned n, uint64_t *value, struct change *change)
{
	static const uint64_t integers[] = {0,          1,          2,          3,          32,
					    1025,       65536,      0x7fffffff, 0x80000000, 0xffffffe0,
					    0xffffffff, 1ull << 32, 1ull << 63, ~0ull - 30, ~0ull};
	enum { NARROW = 11 }; // values of 32 bits
	static const uint64_t devices[] = {(uint64_t)-1, 1, 8, 64, INT32_MAX, (uint64_t)INT32_MIN};
	const struct parameter *p = &r->parameter[at];
	void *usual;
	size_t bytes;
	switch (p->class) {
	case DEVICE: *value = n ? devices[n - 1] : 0; return n < 1 + sizeof devices / sizeof *devices;
	case INTEGER:
		if (!n)
			*value = usual_number(r, p->name);
		else if (n < 1 + sizeof integers / sizeof *integers)
			*value = integers[n - 1];
		else
			return false;
		return p->bytes > 4 || n <= NARROW;
	case ADDRESS: {
		uint64_t a = usual_address(r);
		const uint64_t all[] = {a,
					0,
					1,
					a + 1,
					a + BYTES - 1,
					a + (1ull << 40),
					is.freed,
					is.large,
					is.large + 64,
					is.large + LARGE,
					is.mapped,
					is.pooled,
					(uintptr_t)host,
					(uintptr_t)is.pages,
					1ull << 63,
					~0ull};
		*value = n < sizeof all / sizeof *all ? all[n] : 0;
		return n < sizeof all / sizeof *all;
	}
	case VALUE: *value = (uintptr_t)(n ? place[ONES] : place[ZEROS]); return n < 2;
	case POINTER:
		usual = behind(r, p->name, &bytes);
		if (usual == (void *)1)
			usual = NULL;
		else if (!usual)
			usual = place[at];
		const void *all[] = {usual, NULL, place[ZEROS], place[ONES], place[END], WILD};
		// Of what is behind a pointer the rest of the driver knows no more than the test.
		const unsigned simple = sizeof all / sizeof *all - (r->simulated ? 0 : 2);
		*value = (uintptr_t)(n < simple ? all[n] : usual);
		if (n < simple)
			return true;
		return change_of((void *)(uintptr_t)usual, bytes, n - simple, change);
	default: {
		void *const *h = is.handle[p->class];
		void *alive = h[ALIVE];
		if (p->class == FUNCTION && !strcmp(p->name, "kernel"))
			alive = is.kernel;
		if (p->class == CONTEXT && !strcmp(p->name, "peerContext"))
			alive = h[OTHER];
		const void *all[] = {alive,
				     NULL,
				     (void *)1,
				     (void *)2,
				     (void *)~0ull,
				     h[OTHER],
				     h[GONE],
				     place[ZEROS],
				     place[ONES],
				     (char *)alive + 1,
				     p->class == EVENT ? is.handle[STREAM][ALIVE] : is.handle[EVENT][ALIVE],
				     is.kernel};
		*value = n < sizeof all / sizeof *all ? (uintptr_t)all[n] : 0;
		return n < sizeof all / sizeof *all;
	}
	}
}

static unsigned counts[ROWS][MOST], plain[ROWS][MOST]; // of values, and of those ahead of changes

static void count_values(void)
{
	uint64_t unused;
	for (size_t r = 0; r < ROWS; r++)
		for (unsigned at = 0; at < rows[r].count; at++) {
			struct change change = {NULL, 0, 0};
			while (value_of(&rows[r], at, counts[r][at], &unused, &change)) {
				counts[r][at]++;
				plain[r][at] += !change.words;
			}
		}
}

static unsigned values_of(const struct row *r, unsigned at) { return counts[r - rows][at]; }
static unsigned plain_values(const struct row *r, unsigned at) { return plain[r - rows][at]; }

struct choice {
	const struct row *row;
	unsigned n[MOST];
	unsigned apart; // of numbers of changes that are made together; 0: one is made
};

// The value of a parameter, and the changes of what it points to. Returns their number.
static unsigned values_in(const struct choice *c, unsigned at, uint64_t *value, struct change *change)
{
	unsigned made = 0;
	for (unsigned n = c->n[at]; made < TOGETHER; n += c->apart) {
		change[made] = (struct change){NULL, 0, 0};
		if (!value_of(c->row, at, n, value, &change[made]) || !change[made].words)
			break;
		made++;
		if (!c->apart)
			break;
	}
	return made;
}

static uint64_t seed;
static uint32_t random_number(void)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33);
}

// Few calls are made of functions that differ from another one in their default stream alone, and of those that may wait for ever.
static bool is_twin(const struct row *r)
{
	return strstr(r->name, "_ptsz") || strstr(r->name, "_ptds") || named(r, "cuMemcpy2DUnaligned") ||
	       named(r, "cuStreamWaitValue");
}

// Behind a call that ended what prepare does not make, another process goes on.
static bool ends_something(const struct choice *c)
{
	static const char *const words[] = {"Unload", "CtxCreate", "CtxAttach", "CtxDestroy", "CtxDetach", "Primary"};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strstr(c->row->name, words[i]))
			return true;
	for (unsigned i = 0; strstr(c->row->name, "Destroy") && i < c->row->count; i++)
		if (c->row->parameter[i].class < HANDLES && c->n[i])
			return true;
	return false;
}

// Calls that leave everything as prepare made it.
static bool changes_nothing(const struct row *r)
{
	static const char *const words[] = {"Launch", "Memcpy",    "Memset",    "Query",     "Synchronize",
					    "Get",    "Occupancy", "WaitEvent", "WriteValue"};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strstr(r->name, words[i]))
			return true;
	return false;
}

// The driver looks at each number and address before it uses any. Another odd pointer, or handle, could keep a call from being survived.
static bool comes_with_others(enum class class) { return class == DEVICE || class == ADDRESS || class == INTEGER; }

// Choice number n of those where the parameters of a class are odd together, and not alike. False: n is lowered by their number.
static bool choose_together(enum class class, unsigned *n, struct choice *c)
{
	const struct row *r = c->row;
	unsigned most = 0, before = 0;
	for (unsigned i = 0; i < r->count; i++)
		if (r->parameter[i].class == class && values_of(r, i) - 1 > most)
			most = values_of(r, i) - 1;
	if (*n >= most) {
		*n -= most;
		return false;
	}
	for (unsigned i = 0; i < r->count; i++)
		if (r->parameter[i].class == class)
			c->n[i] = 1 + (*n + 3 * before++) % (values_of(r, i) - 1);
	return true;
}

// The same of those where one parameter is odd.
static bool choose_alone(unsigned at, unsigned *n, struct choice *c)
{
	unsigned others = values_of(c->row, at) - 1, plain = plain_values(c->row, at) - 1;
	unsigned apart = others > plain ? (others - plain + TOGETHER - 1) / TOGETHER : 0;
	if (*n < plain + apart) {
		c->n[at] = *n + 1;
		c->apart = apart;
		return true;
	}
	*n -= plain + apart;
	return false;
}

static uint64_t hash_of(const char *name)
{
	uint64_t h = 0;
	while (*name)
		h = h * 31 + (unsigned char)*name++;
	return h;
}

// Fills in choice number n of a row; false: it has fewer. A row's usual call comes first. The choices are the same wherever the row stands.
static bool choose(const struct row *r, unsigned n, struct choice *c)
{
	*c = (struct choice){.row = r};
	if (n-- == 0)
		return true;
	for (unsigned i = 0; i < r->count && !is_twin(r); i++)
		if (!comes_with_others(r->parameter[i].class) && choose_alone(i, &n, c))
			return true;
	for (enum class class = 0; class <= VALUE && !is_twin(r); class++)
		if (comes_with_others(class) && choose_together(class, &n, c))
			return true;
	if (n >= AT_RANDOM || !r->count)
		return false;
	seed = hash_of(r->name) << 32 | n;
	random_number();
	for (unsigned i = 0; i < r->count; i++) {
		struct change change;
		uint64_t value;
		if (n == 0)
			c->n[i] = 1 < values_of(r, i);
		else if (random_number() % 2)
			c->n[i] = random_number() % values_of(r, i);
		value_of(r, i, c->n[i], &value, &change);
		if (r->parameter[i].class == POINTER && value == (uintptr_t)WILD)
			c->n[i] = 0;
	}
	return true;
}

// A sum of the changed memory behind pointers: of numbers their value, of an address only that it is one.
static uint64_t sum(const char *at, const char *before)
{
	uint64_t s = 0;
	for (size_t i = 0; i < PAGE / 8; i++) {
		uint64_t now, was;
		memcpy(&now, at + 8 * i, 8);
		memcpy(&was, before + 8 * i, 8);
		if (now != was)
			s = (s ^ (i << 40) ^ (now >> 32 ? 0xadd : now)) * 0x9E3779B97F4A7C15ull + 1;
	}
	return s;
}

static void settle_places(void)
{
	for (int i = 0; i < PLACES; i++)
		memset(place[i] - (i == END ? PAGE - 8 : 0), i == ONES ? 0xff : 0, PAGE);
}

static void print(const struct choice *c)
{
	printf("%s(", c->row->name);
	for (unsigned i = 0; i < c->row->count; i++) {
		struct change change[TOGETHER];
		uint64_t v = 0;
		unsigned changes = values_in(c, i, &v, change);
		printf("%s%s", i ? ", " : "", c->row->parameter[i].name);
		if (!c->n[i])
			continue;
		printf(" = #%u: %#llx", c->n[i], (unsigned long long)v);
		for (unsigned n = 0; n < changes; n++)
			printf(" with word %ld, of %u, %#x", (long)((char *)change[n].word - (char *)(uintptr_t)v) / 4,
			       change[n].words, change[n].to);
	}
	printf(")\n");
}

// The current context, then the other one: an error of either stays with it.
static CUresult synchronize(void)
{
	CUcontext popped;
	CUresult own = CALL(cuCtxSynchronize, (void), ), other = 0;
	if (!CALL(cuCtxPushCurrent_v2, (void *), is.handle[CONTEXT][OTHER])) {
		other = CALL(cuCtxSynchronize, (void), );
		CALL(cuCtxPopCurrent_v2, (CUcontext *), &popped);
	}
	return own ? own : other;
}

// Calls that wait for what never comes, and those that take as much memory as the machine has.
static bool is_left_out(const struct row *r, const uint64_t *v)
{
	return (!strcmp(r->name, "cuEGLStreamConsumerAcquireFrame") && (uint32_t)v[3] == ~0u) ||
	       ((named(r, "cuMemHostAlloc") || named(r, "cuMemAllocHost")) && v[1] > 1 << 26 && v[1] < 1ull << 40);
}

static char before[PLACES][PAGE];
static unsigned patience_s;

static void call(const struct choice *c, struct result *result)
{
	void *function = dlsym(driver, c->row->name);
	uint64_t v[MOST] = {0};
	settle_places();
	for (unsigned i = 0; i < c->row->count; i++) {
		struct change change[TOGETHER];
		unsigned changes = values_in(c, i, &v[i], change);
		for (unsigned n = 0; n < changes; n++) // when all are known: which there are depends on what is there
			for (unsigned w = 0; w < change[n].words; w++)
				change[n].word[w] = change[n].to;
	}
	for (int i = 0; i < PLACES; i++)
		memcpy(before[i], place[i] - (i == END ? PAGE - 8 : 0), PAGE);
	if (is_left_out(c->row, v))
		return;
	alarm(patience_s);
	result->state = BEGUN;
	result->status = c->row->call(function, v);
	bool opaque = false; // numbers of handles and files differ from process to process
	for (unsigned i = 0; i < c->row->count; i++)
		opaque |= c->row->parameter[i].class == POINTER &&
			  strstr("handle pHandle shareableHandle", c->row->parameter[i].name);
	for (int i = 0; i < PLACES; i++) {
		uint64_t s = sum(place[i] - (i == END ? PAGE - 8 : 0), before[i]);
		result->written = result->written * 31 + (opaque ? s != 0 : s);
	}
	bool may_wait = named(c->row, "cuStreamWaitValue");
	result->after = result->status ? 0 : may_wait ? -1 : synchronize();
	alarm(0);
	result->state = MADE;
	fill_in();
}

int main(int argc, char **argv)
{
	struct choice c;
	unsigned number = 0, first = (unsigned)atoi(argv[3]);
	bool prints = !strcmp(argv[1], "-"), once = argc > 5;
	struct result *results = NULL;
	if (!prints) {
		int fd = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, CALLS * sizeof *results) ||
		    (results = mmap(NULL, CALLS * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
			return 1;
	}
	for (int i = 0; i < PLACES; i++)
		place[i] = (char *)room() + (i == END ? PAGE - 8 : 0);
	path_of_image = argv[2];
	patience_s = argc > 4 ? (unsigned)atoi(argv[4]) : 0;
	is.image = read_image(argv[2]);
	if (!(driver = dlopen("libcuda.so.1", RTLD_NOW)))
		return 1;
	begin();
	prepare(true);
	fill_in();
	count_values();
	for (const struct row *r = rows; r < rows + ROWS; r++)
		for (unsigned n = 0; choose(r, n, &c); n++, number++) {
			if (number >= CALLS)
				return 1;
			if (prints && number == first)
				print(&c);
			if (prints || number < first || results[number].state == SKIP)
				continue;
			results[number].row = (uint32_t)(r - rows);
			call(&c, &results[number]);
			if (once)
				_Exit(0);
			if ((results[number].after && results[number].after != CAPTURED) ||
			    (!results[number].status && ends_something(&c)))
				_Exit(AGAIN);
			if (!results[number].status && !changes_nothing(r)) {
				prepare(false);
				fill_in();
			}
		}
	fflush(stdout);
	_Exit(0);
}
