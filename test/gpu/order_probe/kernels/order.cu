// Kernels of build/order-probe (test/gpu/README.md): such as keep their places until the host or each other says so, and such as
// end at once.
#include "order.h"

// The host's words are read over the bus.
static __device__ bool said(const uint32_t *word) { return *(const volatile uint32_t *)word != 0; }

static __device__ void say(uint32_t *word, uint32_t value)
{
	*(volatile uint32_t *)word = value;
	__threadfence_system();
}

static __device__ unsigned processor()
{
	unsigned sm;
	asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
	return sm;
}

// The spinner: each block waits for all others, as those of a cooperative launch do. A block that begins after the abort has not
// arrived. They look at device memory, and seldom at the host's: there are a thousand.
extern "C" __global__ void __launch_bounds__(ORDER_THREADS, ORDER_RESIDENT)
	order_spin(order_words *words, unsigned *arrived, unsigned all)
{
	const unsigned LOOKS = 128;
	if (threadIdx.x == 0 && !said(&words->abort)) {
		say(&words->arrived[blockIdx.x], 1);
		atomicAdd(arrived, 1);
		for (unsigned looks = 1; *(volatile unsigned *)arrived != all; looks++) {
			if (looks % LOOKS == 0 && said(&words->abort))
				break;
			__nanosleep(1000);
		}
	}
	__syncthreads(); // no warp gives its place back before the block ends
}

// A waiter: one block that keeps its place until it is released.
extern "C" __global__ void order_wait(order_words *words, unsigned number)
{
	if (threadIdx.x == 0) {
		say(&words->begun[number], 1 + processor());
		while (!said(&words->release) && !said(&words->abort))
			__nanosleep(500);
	}
	__syncthreads();
}

// What ends at once, and leaves where it was.
extern "C" __global__ void order_short(unsigned *seen)
{
	if (threadIdx.x == 0)
		seen[processor()] = 1;
}

// The same with 1 KiB of static shared memory.
extern "C" __global__ void order_short_shared(unsigned *seen)
{
	__shared__ volatile unsigned room[256];
	room[threadIdx.x % 256] = processor();
	__syncthreads();
	if (threadIdx.x == 0)
		seen[room[255 % blockDim.x]] = 1;
}
