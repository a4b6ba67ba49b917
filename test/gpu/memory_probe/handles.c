// handles.c - the cost of the calls that give physical memory back and take it again, and whether the driver lets one wait for it.
#include <stdlib.h>
#include <string.h>

#include "memory.h"

static const size_t sizes[] = {2 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };

// The calls of one handle, and those over all handles of a run.
enum call { CREATE, MAP, ACCESS, UNMAP, RELEASE, CALLS, ACCESS_ALL = CALLS, UNMAP_ALL, ALLOC, FREE, MEASURED };
static const char *const call_names[MEASURED] = {
	"cuMemCreate",         "cuMemMap",     "cuMemSetAccess",
	"cuMemUnmap",          "cuMemRelease", "cuMemSetAccess over a run",
	"cuMemUnmap of a run", "cuMemAlloc",   "cuMemFree",
};

static void one_by_one(struct mapped *m, const struct properties *properties, struct samples *us)
{
	struct access access = own_access();
	for (size_t i = 0; i < m->count; i++) {
		CUdeviceptr at = m->address + i * m->handle_bytes;
		TIMED(&us[CREATE], cuMemCreate(&m->handle[i], m->handle_bytes, properties, 0));
		TIMED(&us[MAP], cuMemMap(at, m->handle_bytes, 0, m->handle[i], 0));
		TIMED(&us[ACCESS], cuMemSetAccess(at, m->handle_bytes, &access, 1));
	}
	CHECK(cuMemsetD8Async(m->address, 1, plan.quick ? 4096 : m->bytes, NULL));
	CHECK(cuCtxSynchronize());
	for (size_t i = 0; i < m->count; i++) {
		TIMED(&us[UNMAP], cuMemUnmap(m->address + i * m->handle_bytes, m->handle_bytes));
		TIMED(&us[RELEASE], cuMemRelease(m->handle[i]));
	}
}

static void in_a_run(struct mapped *m, struct samples *us)
{
	struct access access = own_access();
	for (size_t i = 0; i < m->count; i++) {
		CHECK(cuMemCreate(&m->handle[i], m->handle_bytes, &on_device, 0));
		CHECK(cuMemMap(m->address + i * m->handle_bytes, m->handle_bytes, 0, m->handle[i], 0));
	}
	TIMED(&us[ACCESS_ALL], cuMemSetAccess(m->address, m->bytes, &access, 1));
	double began = now_us();
	bool taken = cu.cuMemUnmap(m->address, m->bytes) == CUDA_SUCCESS;
	if (taken)
		add(&us[UNMAP_ALL], now_us() - began);
	for (size_t i = 0; i < m->count; i++) {
		if (!taken)
			CHECK(cuMemUnmap(m->address + i * m->handle_bytes, m->handle_bytes));
		CHECK(cuMemRelease(m->handle[i]));
	}
}

static void as_allocations(size_t bytes, size_t count, struct samples *us)
{
	CUdeviceptr *p = calloc(count, sizeof *p);
	if (!p)
		give_up("no memory");
	for (size_t i = 0; i < count; i++)
		TIMED(&us[ALLOC], cuMemAlloc(&p[i], bytes));
	for (size_t i = 0; i < count; i++)
		TIMED(&us[FREE], cuMemFree(p[i]));
	free(p);
}

static void tell(struct samples *us, enum call call, size_t handle_bytes, size_t bytes, const char *suffix)
{
	struct summary sum = sum_up(&us[call]), gib = sum;
	double scale = (double)GIB / (double)bytes;
	gib.p50 *= scale, gib.p99 *= scale, gib.max *= scale;
	figure(sum, "us", "%s, %llu MiB%s", call_names[call], handle_bytes / MIB, suffix);
	figure(gib, "us/GiB", "%s, %llu MiB%s, per GiB", call_names[call], handle_bytes / MIB, suffix);
}

static bool can_create(const struct properties *properties, bool rdma)
{
	struct properties p = *properties;
	mem_handle handle;
	p.rdma = rdma;
	if (cu.cuMemCreate(&handle, 2 * MIB, &p, 0) != CUDA_SUCCESS)
		return false;
	CHECK(cuMemRelease(handle));
	return true;
}

static void measure_size(size_t handle_bytes, size_t budget)
{
	struct samples us[MEASURED] = {0};
	size_t count = budget / handle_bytes, most = handle_bytes < 64 * MIB ? 512 : 64;
	count = count > most ? most : count;
	if (plan.quick)
		count = 2;
	if (!count) {
		fact("not enough memory", "handles of %llu MiB", handle_bytes / MIB);
		return;
	}
	struct mapped m;
	mapped_make(&m, handle_bytes, count);
	mapped_away(&m);
	for (int round = 0; round < (plan.quick ? 1 : 3); round++) {
		one_by_one(&m, &on_device, us);
		in_a_run(&m, us);
		as_allocations(handle_bytes, count, us);
	}
	for (enum call call = 0; call < MEASURED; call++)
		tell(us, call, handle_bytes, call == ACCESS_ALL || call == UNMAP_ALL ? m.bytes : handle_bytes, "");
	fact(text("%zu", count), "handles of %llu MiB in a run", handle_bytes / MIB);
	struct properties shareable = on_device;
	shareable.handle_types = BY_DESCRIPTOR;
	shareable.rdma = can_create(&shareable, true);
	if (can_create(&shareable, shareable.rdma))
		one_by_one(&m, &shareable, us);
	for (enum call call = 0; call < CALLS; call++)
		tell(us, call, handle_bytes, handle_bytes, ", shareable, for RDMA");
	CHECK(cuMemAddressFree(m.address, m.bytes));
	free(m.handle);
	for (int i = 0; i < MEASURED; i++)
		free(us[i].value);
}

void section_handles(void)
{
	size_t budget = device_free() / 10 * 6;
	if (budget > 24 * GIB)
		budget = 24 * GIB;
	for (int i = 0; i < SIZES; i++)
		measure_size(sizes[i], budget);
}

static void release_all(mem_handle *handle, size_t count)
{
	for (size_t i = 0; i < count; i++)
		CHECK(cuMemRelease(handle[i]));
}

// How many could be created.
static size_t create_all(mem_handle *handle, size_t count, size_t bytes)
{
	for (size_t i = 0; i < count; i++) {
		CUresult result = cu.cuMemCreate(&handle[i], bytes, &on_device, 0);
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			return i;
		if (result != CUDA_SUCCESS)
			give_up("cuMemCreate: %s", error_name(result));
	}
	return count;
}

static void create_when_possible(mem_handle *handle, size_t count, size_t bytes)
{
	for (double began = now_us(); now_us() - began < 20e6;) {
		size_t made = create_all(handle, count, bytes);
		if (made == count)
			return;
		release_all(handle, made);
	}
	give_up("what was released cannot be had again for 20 s");
}

// Nearly all memory is released and created again at once. The driver clears memory that was released; who waits for it?
void section_scrubbing(void)
{
	struct samples first = {0}, release = {0}, again = {0}, later = {0}, seen = {0};
	size_t bytes = 256 * MIB, count = (device_free() - 768 * MIB) / bytes;
	if (plan.quick && count > 8)
		count = 8;
	mem_handle *handle = calloc(count, sizeof *handle);
	if (!handle || !count)
		give_up("no memory");
	for (int round = 0; round < (plan.quick ? 1 : 4); round++) {
		double began = now_us();
		create_when_possible(handle, count, bytes);
		add(&first, (now_us() - began) / 1000);
		size_t before = device_free();
		began = now_us();
		release_all(handle, count);
		double released = now_us();
		add(&release, (released - began) / 1000);
		while (device_free() < before + (count - 1) * bytes && now_us() - released < 20e6)
			;
		add(&seen, (now_us() - released) / 1000);
		began = now_us();
		create_when_possible(handle, count, bytes);
		release_all(handle, count);
		began = now_us();
		create_when_possible(handle, count, bytes); // nothing in between
		add(&again, (now_us() - began) / 1000);
		release_all(handle, count);
		pause_us(plan.quick ? 1000 : 1e6);
		began = now_us();
		create_when_possible(handle, count, bytes);
		add(&later, (now_us() - began) / 1000);
		release_all(handle, count);
	}
	fact(text("%.1f", (double)(count * bytes) / GIB), "scrubbing: GiB in handles of 256 MiB");
	figure(sum_up(&first), "ms", "create all");
	figure(sum_up(&release), "ms", "release all");
	figure(sum_up(&seen), "ms", "release all, then wait until cuMemGetInfo says so");
	figure(sum_up(&again), "ms", "create all, at once after the release");
	figure(sum_up(&later), "ms", "create all, a second after the release");
	free(handle);
}

// Calls that a swap makes often while nothing happens.
void section_costs(void)
{
	struct samples info = {0}, idle = {0}, query = {0}, range = {0}, attributes = {0};
	CUdeviceptr p, start;
	size_t a, b;
	unsigned type;
	unsigned long long id;
	int asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 7}; // 7: BUFFER_ID
	void *values[] = {&type, &id};
	CHECK(cuMemAlloc(&p, 4 * MIB));
	for (int i = 0; i < plan.samples; i++) {
		TIMED(&info, cuMemGetInfo(&a, &b));
		TIMED(&idle, cuCtxSynchronize());
		TIMED(&query, cuStreamQuery(NULL));
		TIMED(&range, cuMemGetAddressRange(&start, &a, p));
		TIMED(&attributes, cuPointerGetAttributes(2, asked, values, p));
	}
	figure(sum_up(&info), "us", "cuMemGetInfo");
	figure(sum_up(&idle), "us", "cuCtxSynchronize, idle");
	figure(sum_up(&query), "us", "cuStreamQuery, idle");
	figure(sum_up(&range), "us", "cuMemGetAddressRange");
	figure(sum_up(&attributes), "us", "cuPointerGetAttributes, two");
}
