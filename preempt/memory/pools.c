// pools.c - pools of the driver, from which cuMemAllocAsync takes memory. Their memory stays on the GPU. When memory goes, they give back
// what they keep without need. Answers to the program do not count their memory as free.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <stdlib.h>

// Pools that the program made. No pool in it is destroyed while the lock is held.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	struct made {
		void *pool;
		const struct gp_gpu *gpu;
	} *at;
	size_t count, room;
} table;

// Without memory for the table a pool is not known, and counts as nothing.
static void remember(void *pool, const struct gp_gpu *gpu)
{
	pthread_mutex_lock(&lock);
	if (table.count == table.room) {
		size_t room = table.room ? 2 * table.room : 8;
		struct made *at = realloc(table.at, room * sizeof *at);
		table.at = at ? at : table.at;
		table.room = at ? room : table.room;
	}
	if (table.count < table.room)
		table.at[table.count++] = (struct made){pool, gpu};
	pthread_mutex_unlock(&lock);
}

// Returns the GPU of the pool; NULL: the pool was not known.
static const struct gp_gpu *forget(const void *pool)
{
	const struct gp_gpu *gpu = NULL;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < table.count && !gpu; i++)
		if (table.at[i].pool == pool) {
			gpu = table.at[i].gpu;
			table.at[i] = table.at[--table.count];
		}
	pthread_mutex_unlock(&lock);
	return gpu;
}

CUresult gp_cuMemPoolCreate(void **pool, const struct gp_pool_properties *q)
{
	CUresult result = gp_driver.cuMemPoolCreate(pool, q);
	const struct gp_gpu *gpu = result ? NULL : gp_gpu_at(q->location.type, q->location.id);
	if (gpu)
		remember(*pool, gpu);
	return result;
}

CUresult gp_cuMemPoolDestroy(void *pool)
{
	const struct gp_gpu *gpu = forget(pool); // before it is gone: then another pool may get its address
	CUresult result = gp_driver.cuMemPoolDestroy(pool);
	if (result && gpu)
		remember(pool, gpu);
	return result;
}

static uint64_t reserved(void *pool)
{
	uint64_t bytes = 0;
	if (!gp_driver.cuMemPoolGetAttribute ||
	    gp_driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes))
		return 0;
	return bytes;
}

static uint64_t trim(void *pool)
{
	if (gp_driver.cuMemPoolTrimTo)
		gp_driver.cuMemPoolTrimTo(pool, 0);
	return 0;
}

// Calls what for each pool of a GPU, and sums up. The default pool is always there.
static uint64_t each(const struct gp_gpu *gpu, uint64_t (*what)(void *pool))
{
	void *initial;
	uint64_t sum = 0;
	int mode = gp_relax_captures();
	if (gp_driver.cuDeviceGetDefaultMemPool && !gp_driver.cuDeviceGetDefaultMemPool(&initial, gpu->device))
		sum += what(initial);
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < table.count; i++)
		sum += table.at[i].gpu == gpu ? what(table.at[i].pool) : 0;
	pthread_mutex_unlock(&lock);
	gp_unrelax_captures(mode);
	return sum;
}

uint64_t gp_pools_reserved(const struct gp_gpu *gpu) { return each(gpu, reserved); }

void gp_pools_trim(const struct gp_gpu *gpu) { each(gpu, trim); }
