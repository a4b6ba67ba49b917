// move_test.c - with preempt/memory/gate.c preempt/memory/ranges.c preempt/memory/arena.c preempt/memory/host.c preempt/memory/piece.c preempt/memory/copy.c preempt/memory/drain.c preempt/memory/move.c preempt/memory/pools.c preempt/memory/counted.c preempt/memory/device.c preempt/memory/room.c preempt/memory/account.c preempt/process/*.c preempt/objects/objects.c preempt/driver/*.c.
//
// Evicts and restores memory of the simulated driver, at random, while a thread uses all of it. Every byte is compared. Then each
// call of the driver on the way is refused in turn, and a process is killed at each.
#define _GNU_SOURCE
#include "preempt/memory/arena.h"
#include "preempt/memory/move.h"
#include "test/units/check.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void gp_thread_ends(void) { gp_memory_thread_ends(); }

// Under a sanitizer everything takes ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { WATCHED = true, CYCLES = 8, EVERY = 37 };
#else
enum { WATCHED = false, CYCLES = 20, EVERY = 3 };
#endif

enum {
	RANGES = 6,
	MiB = 1 << 20,
	MEMORY_MB = 1024,
	MAKING_MB = 40, // must be free for a stream or an event: more than any chunk has
};
static const uint64_t LONG_NS = 60ull * 1000 * 1000 * 1000;
static const size_t CHUNKS[RANGES] = {1, 5, 2, 4, 1, 3}, CHUNK_MB[RANGES] = {2, 2, 4, 2, 34, 2}; // one has two pieces

static void *driver;
static struct gp_gpu *gpu;
static struct gp_range *range[RANGES];
static unsigned char *expected[RANGES];

// The driver's functions that no other code of ours calls.
#define CALL(name, parameters, ...) \
	do { \
		CUresult(*function) parameters = dlsym(driver, #name); \
		CHECK(function && function(__VA_ARGS__) == CUDA_SUCCESS); \
	} while (0)

static void write_to(CUdeviceptr to, const void *from, size_t bytes)
{
	CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t), to, from, bytes);
}

static void read_from(void *to, CUdeviceptr from, size_t bytes)
{
	CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t), to, from, bytes);
}

// Chunks are smaller than the library's, so that many move in little time.
static struct gp_range *new_range(size_t chunks, size_t chunk_bytes)
{
	size_t bytes = chunks * chunk_bytes;
	CUdeviceptr address;
	CHECK(!gp_driver.cuMemAddressReserve(&address, bytes, 0, 0, 0));
	struct gp_range *r = gp_range_new(address, bytes, bytes, GP_RANGE_ALLOCATED, chunks);
	CHECK(r);
	r->gpu = gpu;
	r->properties = (struct gp_allocation_properties){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
							  .location_type = CU_MEM_LOCATION_TYPE_DEVICE,
							  .location = gpu->device};
	r->accesses = 1;
	r->access[0] = (struct gp_access){CU_MEM_LOCATION_TYPE_DEVICE, gpu->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	for (size_t i = 0; i < chunks; i++) {
		struct gp_chunk *c = &r->chunk[i];
		c->address = address + i * chunk_bytes;
		c->bytes = chunk_bytes;
		CHECK(!gp_driver.cuMemCreate(&c->handle, c->bytes, &r->properties, 0));
		CHECK(!gp_driver.cuMemMap(c->address, c->bytes, 0, c->handle, 0));
	}
	CHECK(!gp_driver.cuMemSetAccess(address, bytes, r->access, r->accesses));
	gp_memory[0].resident += bytes;
	return r;
}

// The test's own copies, which one thread uses: the thread sanitizer would watch each word of them for nothing.
#define UNWATCHED __attribute__((no_sanitize("thread")))

// A page of each STRIDE has contents, those of its address: a piece or a chunk that comes to another place is seen, and little is touched.
enum { PAGE = 4096, STRIDE = 256 << 10 };

static UNWATCHED void write_pattern(size_t i)
{
	uint64_t seed = random_number();
	for (size_t at = 0; at < range[i]->bytes; at += STRIDE) {
		uint64_t *to = (uint64_t *)(expected[i] + at);
		for (size_t k = 0; k < PAGE / sizeof *to; k++)
			to[k] = (range[i]->address + at + k * sizeof *to) * 0x9e3779b97f4a7c15ull ^ seed;
		write_to(range[i]->address + at, to, PAGE);
	}
}

static UNWATCHED bool same(const uint64_t *a, const uint64_t *b)
{
	for (size_t k = 0; k < PAGE / sizeof *a; k++)
		if (a[k] != b[k])
			return false;
	return true;
}

static void compare_all(void)
{
	static uint64_t seen[PAGE / sizeof(uint64_t)];
	for (size_t i = 0; i < RANGES; i++)
		for (size_t at = 0; at < range[i]->bytes; at += STRIDE) {
			read_from(seen, range[i]->address + at, PAGE);
			CHECK(same(seen, (const uint64_t *)(expected[i] + at)));
		}
}

static size_t free_bytes(void)
{
	size_t free, total;
	CHECK(!gp_driver.cuMemGetInfo(&free, &total));
	return free;
}

static uint64_t all_bytes(void)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < RANGES; i++)
		bytes += range[i]->bytes;
	return bytes;
}

// The books say what the states of the chunks say, and the driver has as much free as that leaves.
static void check_books(size_t free_before)
{
	uint64_t in = 0, out = 0;
	for (size_t i = 0; i < RANGES; i++)
		for (size_t k = 0; k < range[i]->chunks; k++) {
			const struct gp_chunk *c = &range[i]->chunk[k];
			CHECK(c->state == GP_CHUNK_IN || c->state == GP_CHUNK_OUT);
			CHECK((c->state == GP_CHUNK_IN) == (c->host == NULL));
			*(c->state == GP_CHUNK_IN ? &in : &out) += c->bytes;
		}
	CHECK(gp_memory[0].resident == in && gp_memory[0].swapped == out);
	CHECK(gp_memory[0].taken_bytes == gp_memory[0].in_bytes);
	CHECK(gp_memory_closed() == (out > 0));
	CHECK(free_bytes() == free_before + out);
}

static void *look_up(const char *name) { return dlsym(driver, name); }
static void hold_back(bool on) {}
static bool nothing_logged(uint64_t deadline_ns) { return true; }
static void give_way(struct gp_gpu *g, bool on) {}

// A process that is to be killed compares nothing, so its memory gets no contents.
static void begin(bool compared)
{
	CUcontext context;
	setvbuf(stdout, NULL, _IONBF, 0);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver && !gp_driver_resolve(look_up) && !gp_driver_lacks_for_swap());
	CALL(cuInit, (unsigned), 0);
	CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice), &context, 0, 0);
	gp_context_current(context);
	gpu = &gp_gpu[0];
	CHECK(gpu->known);
	gp_memory_others = (struct gp_memory_others){hold_back, nothing_logged, give_way};
	gp_memory_settings.host_bytes = 2 * GP_CHUNK_BYTES;
	gp_settings.level = GP_LEVELS - 1;
	gp_memory_on = gp_memory_counts = 1;
	gp_memory_settings.asks = true;
	for (size_t i = 0; i < RANGES; i++) {
		range[i] = new_range(CHUNKS[i], CHUNK_MB[i] * MiB);
		if (!compared)
			continue;
		expected[i] = malloc(range[i]->bytes);
		write_pattern(i);
	}
}

// A thread of the program.

static _Atomic bool end;
static _Atomic uint64_t passes;

// Copies a byte of each chunk to its own place, over and over.
static void *use_memory(void *context)
{
	CUstream stream;
	CHECK(!gp_driver.cuCtxPushCurrent(context));
	CHECK(!gp_driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream) = dlsym(driver, "cuMemcpyDtoDAsync_v2");
	for (uint64_t n = 0; !end; n++) {
		size_t i = n % RANGES, k = n / RANGES % range[i]->chunks;
		gp_memory_enter();
		CUdeviceptr at = range[i]->chunk[k].address + n % 4096;
		CHECK(!copy(at, at, 1, stream));
		gp_memory_leave();
		if (n % 16 == 0)
			CHECK(!gp_driver.cuStreamSynchronize(stream)); // never 700: the address is not mapped
		passes++;
	}
	CHECK(!gp_driver.cuStreamSynchronize(stream));
	return NULL;
}

static CUresult nothing_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream) { return CUDA_SUCCESS; }
static CUresult nothing_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	return CUDA_SUCCESS;
}

// Beside latency-critical processes the pieces are small. They are large where one of these waits for the room and none is at work; also,
// to the host, where all of these have their memory out.
static void test_pieces(void)
{
	struct gp_segment *s = calloc(1, sizeof(struct gp_view));
	struct gp_copies copies = {.gpu = gpu};
	struct gp_chunk *c = range[4]->chunk; // of 34 MiB
	CUresult (*to_host)(void *, CUdeviceptr, size_t, CUstream) = gp_driver.cuMemcpyDtoHAsync;
	CUresult (*to_device)(CUdeviceptr, const void *, size_t, CUstream) = gp_driver.cuMemcpyHtoDAsync;
	CHECK(s && gp_copies_open(&copies) && gp_chunk_take_host(gpu, c));
	gp_driver.cuMemcpyDtoHAsync = nothing_to_host; // 4 GB in all
	gp_driver.cuMemcpyHtoDAsync = nothing_to_device;
	gpu->segment = s;
	for (int i = 0; i < 128; i++) { // the last ones become urgent meanwhile
		bool higher = i & 1, member = i & 2, open = i & 4, out = i & 16, in = i & 32, urgent = i & (8 | 64);
		s->slot[2].memory.state = out ? GP_MEMORY_COMING : GP_MEMORY_STUCK;
		gpu->higher = higher ? 4 : 0;
		s->members = member ? 5 : 1;
		gp_line_of(s, 2)->window_opened_ns = member && open && !out; // it closes it before it waits
		copies.urgent = i & 8;
		if (i & 64)
			gp_memory_hurry(gpu);
		bool works = higher && member && (!out || in), small = works && ((open && !out) || !urgent);
		uint64_t most = small            ? 1 :
				works            ? 2 :
				higher && member ? GP_PIECES_BESIDE_WAITING :
						   GP_PIECES_IN_FLIGHT;
		CHECK(gp_copies_add(&copies, c, 0, in) == (small ? GP_SMALL_PIECE_BYTES : GP_PIECE_BYTES));
		for (uint64_t more = 0; more < most; more++)
			CHECK(gp_copies_add(&copies, c, GP_PIECE_BYTES, in) == 2 * MiB);
		CHECK(copies.begun - copies.ended == most);
		CHECK(gp_copies_wait(&copies, copies.begun));
	}
	gp_driver.cuMemcpyDtoHAsync = to_host;
	gp_driver.cuMemcpyHtoDAsync = to_device;
	gpu->segment = NULL;
	gpu->higher = 0;
	free(s);
	gp_chunk_give_host(c);
	gp_copies_close(&copies);
	gp_arena_trim(0);
}

static CUresult never_ready(CUevent event) { return CUDA_ERROR_NOT_READY; }

// A small piece that does not end in time is waited for asleep.
static void test_late_piece(void)
{
	CUresult (*query)(CUevent) = gp_driver.cuEventQuery;
	struct gp_copies copies = {.gpu = gpu};
	struct gp_chunk *c = range[0]->chunk;
	CHECK(gp_copies_open(&copies) && gp_chunk_take_host(gpu, c));
	CHECK(gp_copies_add(&copies, c, 0, false) == c->bytes);
	copies.small = true;
	gp_driver.cuEventQuery = never_ready;
	CHECK(gp_copies_wait(&copies, copies.begun));
	gp_driver.cuEventQuery = query;
	gp_chunk_give_host(c);
	gp_copies_close(&copies);
	gp_arena_trim(0);
}

static uint64_t page_faults(void)
{
	struct rusage usage;
	CHECK(!getrusage(RUSAGE_SELF, &usage));
	return (uint64_t)usage.ru_minflt;
}

// Pages of a piece are made as long as that is not cut short, and what was there stays.
static void test_touch(void)
{
	_Atomic bool cut = true;
	unsigned char there;
	char *piece = gp_piece_make(gpu);
	CHECK(piece && !gp_piece_touch(piece, &cut));
	CHECK(!mincore(piece, 4096, &there) && !(there & 1));
	cut = false;
	piece[4096] = 5;
	uint64_t faults = page_faults();
	CHECK(gp_piece_touch(piece, &cut) && piece[4096] == 5);
	CHECK(page_faults() - faults >= GP_CHUNK_BYTES / GP_GRANULE - 1); // one of a huge page each, but for the first
	gp_piece_end(piece, false);
}

static CUresult (*copy_to_device)(CUdeviceptr, const void *, size_t, CUstream);
static uint64_t upto;

static CUresult copy_and_grant(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	CHECK(gp_memory[0].in_bytes + bytes <= gp_memory[0].taken_bytes && gp_memory[0].taken_bytes <= upto);
	gp_memory_grant(gpu, upto += 34 * MiB);
	return copy_to_device(to, from, bytes, stream);
}

// As much comes as may; one restore goes on as others leave.
static void test_grants(void)
{
	size_t before = free_bytes();
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED);
	CHECK(gp_memory_restore(gpu, 34 * MiB, false) == GP_MOVE_NO_ROOM);
	CHECK(gp_memory[0].resident && gp_memory[0].resident <= 34 * MiB);
	check_books(before);
	uint64_t restores = gp_memory[0].restores;
	upto = gp_memory[0].in_bytes + 34 * MiB;
	copy_to_device = gp_driver.cuMemcpyHtoDAsync;
	gp_driver.cuMemcpyHtoDAsync = copy_and_grant;
	CHECK(gp_memory_restore(gpu, 34 * MiB, false) == GP_MOVED);
	gp_driver.cuMemcpyHtoDAsync = copy_to_device;
	CHECK(gp_memory[0].restores == restores + 1);
	check_books(before);
	compare_all();
}

static CUresult (*create)(unsigned long long *, size_t, const struct gp_allocation_properties *, unsigned long long);
static CUresult (*synchronize)(CUevent);
static unsigned copied, synchronized, in_flight; // in_flight: when the first chunk was made that was allowed later
static bool allowed;

static CUresult copy_and_count(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	copied++;
	return copy_to_device(to, from, bytes, stream);
}

static CUresult synchronize_and_grant(CUevent event)
{
	CUresult result = synchronize(event);
	synchronized++;
	if (!allowed)
		gp_memory_grant(gpu, UINT64_MAX);
	allowed = true;
	return result;
}

static CUresult create_and_look(unsigned long long *handle, size_t bytes, const struct gp_allocation_properties *p,
				unsigned long long flags)
{
	if (allowed && !in_flight)
		in_flight = copied - synchronized;
	return create(handle, bytes, p, flags);
}

// Chunks that are allowed while pieces are on the bus are made before the last of these has ended.
static void test_next_is_made_meanwhile(void)
{
	enum { FIRST = 4 }; // chunks, whose pieces are all in flight at once
	uint64_t first = 0;
	size_t before = free_bytes(), chunks = 0;
	for (struct gp_range *r = NULL; chunks < FIRST && (r = gp_range_next(gpu, r));)
		for (size_t i = 0; i < r->chunks && chunks < FIRST; i++, chunks++)
			first += r->chunk[i].bytes;
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED);
	copy_to_device = gp_driver.cuMemcpyHtoDAsync;
	create = gp_driver.cuMemCreate;
	synchronize = gp_driver.cuEventSynchronize;
	gp_driver.cuMemcpyHtoDAsync = copy_and_count;
	gp_driver.cuMemCreate = create_and_look;
	gp_driver.cuEventSynchronize = synchronize_and_grant;
	CHECK(gp_memory_restore(gpu, first, false) == GP_MOVED);
	gp_driver.cuMemcpyHtoDAsync = copy_to_device;
	gp_driver.cuMemCreate = create;
	gp_driver.cuEventSynchronize = synchronize;
	CHECK(allowed && in_flight >= FIRST - 1);
	check_books(before);
	compare_all();
}

static unsigned refusals, refused_in_flight; // still to come, and those that came while pieces were in flight

static CUresult create_later(unsigned long long *handle, size_t bytes, const struct gp_allocation_properties *p,
			     unsigned long long flags)
{
	if (!refusals)
		return create(handle, bytes, p, flags);
	refused_in_flight += copied > synchronized;
	refusals--;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult synchronize_and_refuse(CUevent event)
{
	synchronized++;
	return synchronize(event);
}

static CUresult copy_and_refuse(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	if (!copied++)
		refusals = 3;
	return copy_to_device(to, from, bytes, stream);
}

// Memory that is allowed and that the driver has only after a while, since it is scrubbed, ends no restore: neither before the first piece
// nor while pieces are in flight. Memory that the driver never has ends it, and chunks that have come stay.
static void test_scrubbed_later(void)
{
	size_t before = free_bytes();
	uint64_t restores = gp_memory[0].restores;
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED);
	copy_to_device = gp_driver.cuMemcpyHtoDAsync;
	create = gp_driver.cuMemCreate;
	synchronize = gp_driver.cuEventSynchronize;
	gp_driver.cuMemcpyHtoDAsync = copy_and_refuse;
	gp_driver.cuMemCreate = create_later;
	gp_driver.cuEventSynchronize = synchronize_and_refuse;
	copied = synchronized = 0;
	refusals = 3;
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED && !refusals && refused_in_flight);
	CHECK(gp_memory[0].restores == restores + 1);
	check_books(before);
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED);
	refusals = UINT32_MAX;
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVE_NO_ROOM && !gp_memory[0].resident);
	CHECK(UINT32_MAX - refusals == 40); // 10 ms, each 0.25, however late the machine lets this thread ask
	check_books(before);
	gp_driver.cuMemcpyHtoDAsync = copy_to_device;
	gp_driver.cuMemCreate = create;
	gp_driver.cuEventSynchronize = synchronize;
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED);
	check_books(before);
	compare_all();
}

static CUresult (*unmap)(CUdeviceptr, size_t);
static struct gp_view *told;
static unsigned unmapped;

static CUresult unmap_and_look(CUdeviceptr at, size_t bytes)
{
	const struct gp_memory_counters *m = &told->own.memory;
	if (++unmapped == 2)
		CHECK(told->shared.bell == 1 && m->swapped && m->swapped == gp_memory[0].swapped &&
		      m->resident == gp_memory[0].resident);
	return unmap(at, bytes);
}

// The bell tells others of room while the rest still leaves.
static void test_others_are_told(void)
{
	CHECK(told = calloc(1, sizeof *told));
	unmap = gp_driver.cuMemUnmap;
	gp_driver.cuMemUnmap = unmap_and_look;
	gp_memory[0].out_bytes = (64 << 20) - 1; // the bell rings when the first chunk has left
	gpu->segment = &told->segment;
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED && unmapped > 2);
	gp_driver.cuMemUnmap = unmap;
	gpu->segment = NULL;
	free(told);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED);
	compare_all();
}

static void test_cycles(void)
{
	pthread_t thread;
	size_t before = free_bytes();
	uint64_t failures = gp_memory[0].failures;
	CHECK(!pthread_create(&thread, NULL, use_memory, gp_current_handle()));
	for (int i = 0; i < CYCLES; i++) {
		uint64_t bytes = random_number() % all_bytes() + 1, seen = passes;
		CHECK(gp_memory_evict(gpu, bytes, LONG_NS, false) == GP_MOVED);
		CHECK(gp_memory[0].swapped >= bytes && gp_memory[0].swapped < bytes + 34 * MiB && !gp_memory[0].cannot_go);
		check_books(before);
		if (random_number() % 4 == 0) {
			CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED);
			CHECK(!gp_memory[0].resident);
		}
		check_books(before);
		CHECK(gp_memory_restore(gpu, UINT64_MAX, i % 2) == GP_MOVED);
		check_books(before);
		while (passes == seen) // the thread gets through between two moves
			usleep(100);
		if (i % 8 == 0) {
			compare_all();
			write_pattern(random_number() % RANGES);
		}
	}
	end = true;
	pthread_join(thread, NULL);
	compare_all();
	CHECK(gp_memory[0].failures == failures && gp_arena_pinned() <= gp_memory_settings.host_bytes);
	range[0]->pins = 1;
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED);
	CHECK(gp_memory[0].cannot_go && gp_memory[0].cannot_go == gp_memory[0].resident);
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED &&
	      gp_memory[0].cannot_go == gp_memory[0].resident);
	range[0]->pins = 0;
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED && !gp_memory[0].cannot_go);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED);
	gp_arena_trim(0);
	CHECK(!gp_arena_pinned());
}

// Calls that the driver refuses.

static _Atomic int countdown; // the call that is refused; below 0: none
static CUresult error;
static bool dead; // every call is refused
static CUresult refuse(void) { return dead || --countdown == 0 ? error : CUDA_SUCCESS; }

#define FAULT(name, parameters, arguments) \
	static CUresult(*real_##name) parameters; \
	static CUresult fault_##name parameters \
	{ \
		CUresult refused = refuse(); \
		return refused ? refused : real_##name arguments; \
	} \
	static void install_##name(bool on) \
	{ \
		if (on) \
			real_##name = gp_driver.name; \
		gp_driver.name = on ? fault_##name : real_##name; \
	}
FAULT(cuMemCreate, (unsigned long long *h, size_t b, const struct gp_allocation_properties *p, unsigned long long f),
      (h, b, p, f))
FAULT(cuMemMap, (CUdeviceptr a, size_t b, size_t o, unsigned long long h, unsigned long long f), (a, b, o, h, f))
FAULT(cuMemSetAccess, (CUdeviceptr a, size_t b, const void *d, size_t n), (a, b, d, n))
FAULT(cuMemUnmap, (CUdeviceptr a, size_t b), (a, b))
FAULT(cuMemRelease, (unsigned long long h), (h))
FAULT(cuMemcpyDtoHAsync, (void *t, CUdeviceptr f, size_t b, CUstream s), (t, f, b, s))
FAULT(cuMemcpyHtoDAsync, (CUdeviceptr t, const void *f, size_t b, CUstream s), (t, f, b, s))
FAULT(cuStreamCreateWithPriority, (CUstream * s, unsigned f, int p), (s, f, p))
FAULT(cuEventCreate, (CUevent * e, unsigned f), (e, f))
FAULT(cuEventRecord, (CUevent e, CUstream s), (e, s))
FAULT(cuEventSynchronize, (CUevent e), (e))
FAULT(cuCtxPushCurrent, (CUcontext c), (c))
FAULT(cuCtxSynchronize, (void), ())
FAULT(cuMemHostRegister, (void *m, size_t b, unsigned f), (m, b, f))

static const struct {
	const char *name;
	void (*install)(bool on);
	CUresult error;
} FAULTS[] = {
#define ROW(name) {#name, install_##name, CUDA_ERROR_UNKNOWN}
	ROW(cuMemCreate),
	ROW(cuMemMap),
	ROW(cuMemSetAccess),
	ROW(cuMemUnmap),
	ROW(cuMemRelease),
	ROW(cuMemcpyDtoHAsync),
	ROW(cuMemcpyHtoDAsync),
	ROW(cuStreamCreateWithPriority),
	ROW(cuEventCreate),
	ROW(cuEventRecord),
	ROW(cuEventSynchronize),
	ROW(cuCtxPushCurrent),
	ROW(cuCtxSynchronize),
	{"cuMemCreate", install_cuMemCreate, CUDA_ERROR_OUT_OF_MEMORY},
	{"cuMemHostRegister", install_cuMemHostRegister, CUDA_ERROR_OUT_OF_MEMORY},
#undef ROW
};

// Refuses the nth call of an eviction of all and its restore. False: there were not so many.
static bool refuse_one(size_t fault, int nth, size_t before)
{
	error = FAULTS[fault].error;
	FAULTS[fault].install(true);
	countdown = nth;
	enum gp_move_result out = gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false);
	enum gp_move_result in = gp_memory_restore(gpu, UINT64_MAX, false);
	bool refused = countdown <= 0;
	countdown = -1;
	FAULTS[fault].install(false);
	bool again = error == CUDA_ERROR_OUT_OF_MEMORY && !strcmp(FAULTS[fault].name, "cuMemCreate");
	if (refused && out == GP_MOVED && in == GP_MOVED && !again)
		CHECK(!strncmp(FAULTS[fault].name, "cuEvent", strlen("cuEvent")) ||
		      !strcmp(FAULTS[fault].name, "cuCtxPushCurrent") || !strcmp(FAULTS[fault].name, "cuMemRelease"));
	CHECK(!again || in == GP_MOVED);
	check_books(before);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED);
	check_books(before);
	CHECK(!gp_memory[0].swapped && !gp_memory_closed());
	return refused;
}

static void test_faults(void)
{
	size_t before = free_bytes();
	for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++) {
		int n = 1;
		if (!strcmp(FAULTS[i].name, "cuMemHostRegister"))
			gp_arena_trim(0);
		for (; refuse_one(i, n, before); n += EVERY) {
			compare_all();
			write_pattern((size_t)n % RANGES);
		}
		CHECK(n > 1);
	}
	// Pinning was refused last. It is tried again, but not at once.
	while (gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVE_NO_HOST)
		usleep(10000);
	CHECK(!gp_memory[0].resident && gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED);
}

// A chunk whose memory the driver did not take back needs no room to come in.
static void test_kept_memory(void)
{
	size_t before = free_bytes();
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED);
	uint64_t out = gp_memory[0].swapped;
	error = CUDA_ERROR_UNKNOWN;
	dead = true;
	install_cuMemSetAccess(true);
	install_cuMemUnmap(true);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVE_FAILED);
	dead = false;
	install_cuMemSetAccess(false);
	install_cuMemUnmap(false);
	size_t kept = before + out - free_bytes();
	CHECK(kept && gp_memory[0].swapped == out);
	CHECK(gp_memory_restore(gpu, 0, false) == GP_MOVE_NO_ROOM && gp_memory[0].resident == kept);
	check_books(before);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED);
	check_books(before);
	compare_all();
}

static unsigned long long fill(size_t bytes)
{
	unsigned long long handle;
	CHECK(!gp_driver.cuMemCreate(&handle, bytes, &range[0]->properties, 0));
	return handle;
}

static unsigned events; // that can still be made

static CUresult (*make_event)(CUevent *, unsigned);
static CUresult make_few(CUevent *event, unsigned flags)
{
	return events ? events--, make_event(event, flags) : CUDA_ERROR_OUT_OF_MEMORY;
}

// On a GPU that is full no stream and no event can be made. Memory leaves it all the same, and comes back.
static void test_full(void)
{
	enum { LEFT = (MAKING_MB - 2) * MiB };
	size_t before = free_bytes();
	uint64_t failures = gp_memory[0].failures;
	CUstream stream;
	unsigned long long all = fill(before);
	CHECK(gp_driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED && !gp_memory[0].resident);
	check_books(0);
	unsigned long long others = fill(free_bytes() - LEFT);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVE_NO_ROOM && gp_memory[0].resident);
	CHECK(!gp_driver.cuMemRelease(others) && !gp_driver.cuMemRelease(all));
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED);
	check_books(before);
	compare_all();
	make_event = gp_driver.cuEventCreate;
	gp_driver.cuEventCreate = make_few;
	events = 5; // the stream is made, and some events are
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED && !events);
	events = 5;
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED && !events);
	gp_driver.cuEventCreate = make_event;
	check_books(before);
	compare_all();
	CHECK(gp_memory[0].failures == failures);
}

// Processes that end in the middle.

static void run(const char *mode, const char *kill, bool killed)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		setenv("SIMCUDA_KILL", kill, 1);
		execl("/proc/self/exe", "test", mode, NULL);
		_exit(1);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && !WEXITSTATUS(status));
}

static void die_in_the_middle(void)
{
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED);
	CHECK(!"killed");
}

static void test_kills(void)
{
	static const char *const CALLS[] = {"cuMemUnmap:1",       "cuMemUnmap:9",        "cuMemRelease:1",
					    "cuMemRelease:16",    "cuMemCreate:17",      "cuMemCreate:24",
					    "cuMemMap:17",        "cuMemMap:30",         "cuMemSetAccess:7",
					    "cuMemSetAccess:10",  "cuMemcpyDtoHAsync:3", "cuMemcpyHtoDAsync:1",
					    "cuMemcpyHtoDAsync:9"};
	size_t before = free_bytes();
	for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
		run("die", CALLS[i], true);
		CHECK(free_bytes() == before);
	}
	compare_all();
}

// A call that stays inside, a capture, and work that does not end.
static void test_deadlines(void)
{
	size_t before = free_bytes();
	gp_memory_enter();
	CHECK(gp_memory_evict(gpu, MiB, 20000000, false) == GP_MOVE_BUSY && !gp_memory_closed());
	gp_memory_leave();
	gp_captures++;
	CHECK(gp_memory_evict(gpu, MiB, 20000000, false) == GP_MOVE_BUSY && !gp_memory_closed());
	gp_captures--;
	uint32_t *flag, *seen;
	CHECK(!gp_driver.cuMemHostAlloc((void **)&flag, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	seen = flag;
	*flag = 0;
	CALL(cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned), NULL, (CUdeviceptr)(uintptr_t)seen, 1, 0);
	CHECK(gp_memory_evict(gpu, MiB, 50000000, false) == GP_MOVE_BUSY && !gp_memory_closed());
	CHECK(gp_memory_evict(gpu, MiB, LONG_NS, false) == GP_MOVE_BUSY); // the first drain is still under way
	CUcontext other, first;
	CUstream stream;
	void *graph;
	CALL(cuCtxGetCurrent, (CUcontext *), &first);
	CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice), &other, 0, 0);
	gp_context_current(other);
	CALL(cuStreamCreate, (CUstream *, unsigned), &stream, CU_STREAM_NON_BLOCKING);
	CALL(cuStreamBeginCapture_v2, (CUstream, int), stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	__atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
	while (gp_memory_draining()) // the context that is left is not synchronized any more
		usleep(1000);
	CALL(cuStreamEndCapture, (CUstream, void **), stream, &graph);
	gp_find_context(other)->handle = NULL;
	CALL(cuCtxDestroy_v2, (CUcontext), other);
	CALL(cuCtxSetCurrent, (CUcontext), first);
	while (gp_memory_evict(gpu, MiB, LONG_NS, false) == GP_MOVE_BUSY)
		usleep(1000);
	CHECK(gp_memory[0].swapped);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVED);
	check_books(before);
}

static void *ask_for_room(void *bytes)
{
	struct gp_retry r = {0};
	bool room = gp_memory_wait_for_room(gpu, *(uint64_t *)bytes, &r);
	CHECK(gp_memory[0].wanted == *(uint64_t *)bytes || !room);
	gp_memory_call_over(&r);
	return room ? bytes : NULL;
}

static void test_room(void)
{
	pthread_t thread;
	void *answer;
	uint64_t bytes = 3 * GP_GRANULE;
	for (int i = 0; i < 3; i++) {
		bool vain = i == 1; // the next call is not refused before it is answered
		CHECK(!pthread_create(&thread, NULL, ask_for_room, &bytes));
		while (gp_memory[0].wanted != bytes)
			usleep(100);
		usleep(1000);
		gp_memory_room_changed(0, vain ? bytes - 1 : UINT64_MAX, true);
		pthread_join(thread, &answer);
		CHECK((answer == NULL) == vain && !gp_memory[0].wanted && !gp_memory[0].waiting);
	}
	gp_memory_room_changed(0, 0, false);
	CHECK(!ask_for_room(&bytes)); // at once
	gp_memory_room_changed(0, UINT64_MAX, false);
	gp_memory_settings.limit_bytes = all_bytes() + bytes - 1;
	CHECK(!ask_for_room(&bytes));
	gp_memory_settings.limit_bytes = 0;
	gp_settings.level = 0;
	gp_memory_settings.wait_ns = 5000000;
	CHECK(!ask_for_room(&bytes)); // after the time
	gp_settings.level = GP_LEVELS - 1;
	gp_memory_no_room_helps();
	CHECK(!gp_memory_wait_again(&(struct gp_retry){0}, gpu)); // nobody would answer
}

// All contexts meet an error while memory is out. The program goes on, to be told by its next call.
static void test_lost(void)
{
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVED);
	error = 700; // CUDA_ERROR_ILLEGAL_ADDRESS
	dead = true;
	install_cuStreamCreateWithPriority(true);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVE_FAILED && gp_memory_closed()); // the context is well
	install_cuCtxSynchronize(true);
	CHECK(gp_memory_restore(gpu, UINT64_MAX, false) == GP_MOVE_FAILED && !gp_memory_closed());
	CHECK(gp_memory_evict(gpu, UINT64_MAX, LONG_NS, false) == GP_MOVE_FAILED && !gp_memory_closed());
	CHECK(gp_log_next(0));
}

int main(int argc, char **argv)
{
	char folder[] = "/tmp/move_test.XXXXXX", size[16];
	if (argc > 1) {
		begin(false);
		die_in_the_middle();
	}
	if (!getenv("SIMCUDA_DIR")) { // once more, with the simulated driver in front of libc
		const char *simulated = getenv("SIMULATED_DRIVER");
		CHECK(mkdtemp(folder));
		snprintf(size, sizeof size, "%d", MEMORY_MB);
		setenv("SIMCUDA_DIR", folder, 1);
		setenv("SIMCUDA_MEMORY_MB", size, 1);
		setenv("SIMCUDA_CONTEXT_MB", "64", 1);
		snprintf(size, sizeof size, "%d", MAKING_MB);
		setenv("SIMCUDA_MAKING_MB", size, 1);
		setenv("LD_PRELOAD", simulated ? simulated : "../../build/sim/libcuda.so.1", 1);
		setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
		setenv("TSAN_OPTIONS", "ignore_noninstrumented_modules=1", 1); // not the bytes that the simulated driver copies
		execv("/proc/self/exe", argv);
		return 1;
	}
	begin(true);
	test_room();
	test_pieces();
	test_late_piece();
	test_touch();
	test_grants();
	test_next_is_made_meanwhile();
	test_scrubbed_later();
	test_others_are_told();
	test_deadlines();
	test_faults();
	test_kept_memory();
	test_full();
	if (!WATCHED) // a sanitizer tells nothing of a process that is killed
		test_kills();
	test_cycles();
	test_lost();
	return 0;
}
