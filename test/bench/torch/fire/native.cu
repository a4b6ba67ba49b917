// CUDA C++ programs whose results show whether every block of every launch ran exactly once and in order.
// The suite blp-fire compiles and runs it:
//
//   native CASE
//
// A round starts from the same state each time and leaves a list of checksums. As a worker (PROTOCOL.md) it answers init
// with those of the first round, {"steps": [...]}. start begins rounds, at least one; the answer to stop says how many
// there were, how long they took, and which were different from the first. torch_programs.py serves the same.
#include <cooperative_groups.h>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cuda_runtime.h>
#include <poll.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace cg = cooperative_groups;
using Word = uint32_t;
using Sum = unsigned long long;

#define CHECK(call) \
	do { \
		cudaError_t result_ = (call); \
		if (result_ != cudaSuccess) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(result_)); \
			exit(1); \
		} \
	} while (0)

// ---- kernels

__device__ __forceinline__ Word scrambled(Word word, Word rounds, Word seed)
{
	for (Word round = 0; round < rounds; round++)
		word = (word ^ word >> 15) * 0x2c1b3c6du + seed + round;
	return word;
}

__global__ void fill(Word *data, Word n, Word seed)
{
	Word i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		data[i] = (i + seed) * 2654435761u;
}

// In place: a block that runs twice, or not at all, or before an earlier launch, changes the result.
__global__ void mix(Word *data, Word n, Word rounds, Word seed)
{
	Word i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		data[i] = scrambled(data[i], rounds, i + seed);
}

// to[i] follows from two words of from that other blocks wrote.
__global__ void gather(Word *to, const Word *from, Word n, Word rounds, Word seed)
{
	Word i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		to[i] = scrambled(from[(i * 1025u + 77) % n] + to[i], rounds, seed);
}

__global__ void checksum(const Word *data, Word n, Sum *out)
{
	Sum sum = 0;
	for (Word i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		sum += (Sum)(data[i] ^ i) * 0x9e3779b97f4a7c15ull >> 7;
	for (int lane = 16; lane; lane /= 2)
		sum += __shfl_xor_sync(~0u, sum, lane);
	if (threadIdx.x % 32 == 0)
		atomicAdd(out, sum);
}

enum { BINS = 4096 };

struct Atomics {
	Word bins[BINS], products[BINS], maxima[BINS], wrapped[BINS], flips[BINS];
	float floats[BINS]; // sums of small whole numbers: exact in any order
	double doubles[BINS];
	Sum tickets, ticket_sum;
};

__global__ void atomics(Atomics *a, Word rounds, Word seed)
{
	Word i = blockIdx.x * blockDim.x + threadIdx.x, value = scrambled(i, rounds, seed), bin = value % BINS;
	atomicAdd(&a->bins[bin], value >> 8);
	atomicMax(&a->maxima[bin], value);
	atomicInc(&a->wrapped[bin], 1000);
	atomicXor(&a->flips[bin], value);
	atomicAdd(&a->floats[i % BINS], (float)(value >> 29));
	atomicAdd(&a->doubles[bin], (double)(value & 0xffff));
	Word seen, old = a->products[bin];
	do {
		seen = old;
		old = atomicCAS(&a->products[bin], seen, (seen | 1) * (value | 1));
	} while (old != seen);
	atomicAdd(&a->ticket_sum, atomicAdd(&a->tickets, 1ull));
}

// Inclusive scan by decoupled look-back; tiles by block index (which the hardware hands out in order) or by
// ticket, as CUB's older scans took them. A tile waits for those before it.
enum { TILE = 1024 };
constexpr Sum PARTIAL = 1ull << 62, COMPLETE = 2ull << 62, VALUE = PARTIAL - 1;

template <bool TICKET>
__global__ void __launch_bounds__(TILE) look_back(Word *data, Word n, volatile Sum *status, Word *ticket, Word rounds)
{
	__shared__ Word tile_shared;
	__shared__ Sum scanned[TILE], before_shared;
	if (threadIdx.x == 0)
		tile_shared = TICKET ? atomicAdd(ticket, 1) : blockIdx.x;
	__syncthreads();
	Word tile = tile_shared, i = tile * TILE + threadIdx.x;
	scanned[threadIdx.x] = i < n ? scrambled(data[i], rounds, i) & 0xffff : 0;
	__syncthreads();
	for (int step = 1; step < TILE; step *= 2) {
		Sum other = threadIdx.x >= step ? scanned[threadIdx.x - step] : 0;
		__syncthreads();
		scanned[threadIdx.x] += other;
		__syncthreads();
	}
	if (threadIdx.x == 0) {
		Sum own = scanned[TILE - 1], before = 0;
		status[tile] = (tile ? PARTIAL : COMPLETE) | own;
		for (Word other = tile; other--;) {
			Sum seen;
			while (!((seen = status[other]) & ~VALUE))
				;
			before += seen & VALUE;
			if (seen & COMPLETE)
				break;
		}
		if (tile)
			status[tile] = COMPLETE | ((before + own) & VALUE);
		before_shared = before;
	}
	__syncthreads();
	if (i < n)
		data[i] = (Word)(before_shared + scanned[threadIdx.x]) ^ i;
}

__global__ void cooperative(Word *one, Word *other, Word n, Word phases, Word seed)
{
	auto grid = cg::this_grid();
	for (Word phase = 0; phase < phases; phase++) {
		for (Word i = grid.thread_rank(); i < n; i += grid.num_threads())
			other[i] = scrambled(one[(i + n / 2 + phase) % n] ^ other[i], 50, seed + phase);
		grid.sync();
		Word *swapped = one;
		one = other;
		other = swapped;
	}
}

// The next ones wait for blocks of their launch without a cooperative launch.

__device__ void wait_until(Word *word, Word value)
{
	if (threadIdx.x == 0)
		while (atomicAdd(word, 0) != value)
			__nanosleep(50);
	__syncthreads();
	__threadfence();
}

// As the reduction of Marlin: of the blocks that share a tile, each waits for the one with the next higher number.
__global__ void later_first(Word *data, Word slices, Word rounds, Word seed, Word *locks)
{
	Word tile = blockIdx.x / slices, turn = slices - 1 - blockIdx.x % slices,
	     *at = &data[tile * blockDim.x + threadIdx.x];
	Word own = scrambled(blockIdx.x * blockDim.x + threadIdx.x, rounds, seed);
	wait_until(&locks[tile], turn);
	*at = *at * 3 + own;
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0)
		atomicExch(&locks[tile], turn + 1 < slices ? turn + 1 : 0);
}

// As the Lamport protocols of FlashInfer and TensorRT-LLM: block 0 waits for all others.
__global__ void first_last(Word *data, Word rounds, Word seed, Word *arrived)
{
	Word i = blockIdx.x * blockDim.x + threadIdx.x;
	data[i] = scrambled(data[i], rounds, i + seed);
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0)
		atomicAdd(arrived, 1);
	if (blockIdx.x)
		return;
	wait_until(arrived, gridDim.x);
	Word sum = 0;
	for (Word block = 0; block < gridDim.x; block++)
		sum = sum * 3 + ((volatile Word *)data)[block * blockDim.x + threadIdx.x];
	data[threadIdx.x] = sum;
	if (threadIdx.x == 0)
		atomicExch(arrived, 0);
}

// A barrier of all blocks, written by hand. The word counts on, from launch to launch of as many blocks.
__global__ void all_together(Word *one, Word *other, Word n, Word phases, Word seed, Word *arrived)
{
	for (Word phase = 0; phase < phases; phase++) {
		for (Word i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
			other[i] = scrambled(((volatile Word *)one)[(i + n / 2 + phase) % n] ^ other[i], 50, seed + phase);
		__threadfence();
		__syncthreads();
		if (threadIdx.x == 0) {
			Word target = (atomicAdd(arrived, 1) / gridDim.x + 1) * gridDim.x;
			while ((int)(atomicAdd(arrived, 0) - target) < 0)
				__nanosleep(50);
		}
		__syncthreads();
		__threadfence();
		Word *swapped = one;
		one = other;
		other = swapped;
	}
}

// One block that says that it is there and waits for one of a launch on another stream, each in its turn.
__global__ void meet(Word *data, Word rounds, Word seed, Word *here, Word *there, Word turn)
{
	data[threadIdx.x] = scrambled(data[threadIdx.x], rounds, seed + threadIdx.x);
	if (threadIdx.x == 0) {
		atomicExch(here, turn);
		while ((int)(atomicAdd(there, 0) - turn) < 0)
			__nanosleep(50);
	}
}

__device__ void exchange(Word *data, Word rounds, Word seed)
{
	__shared__ Word own[256];
	auto cluster = cg::this_cluster();
	Word i = blockIdx.x * blockDim.x + threadIdx.x;
	own[threadIdx.x] = scrambled(data[i], rounds, seed);
	for (Word step = 1; step < cluster.num_blocks(); step++) {
		cluster.sync();
		Word *theirs = cluster.map_shared_rank(own, (cluster.block_rank() + step) % cluster.num_blocks());
		Word word = theirs[(threadIdx.x * 5 + step) % 256];
		cluster.sync();
		own[threadIdx.x] = scrambled(own[threadIdx.x] + word, rounds, step);
	}
	data[i] = own[threadIdx.x];
	cluster.sync(); // shared memory of a block that has ended may not be read
}

__global__ void __cluster_dims__(4, 1, 1) cluster_of_four(Word *data, Word rounds, Word seed)
{
	exchange(data, rounds, seed);
}

__global__ void cluster_of_any(Word *data, Word rounds, Word seed) { exchange(data, rounds, seed); }

// ---- rounds

enum { THREADS = 256, WORDS = 1 << 21, BLOCKS = WORDS / THREADS, ROUNDS = 600 };

// The checksums of a round: of device memory, in the order of a stream, and from the host.
struct Steps {
	enum { MOST = 4096 };
	Sum *sums;
	int count = 0;
	std::vector<Sum> of_host;

	Steps() { CHECK(cudaMalloc(&sums, MOST * sizeof *sums)); }
	void begin()
	{
		count = 0;
		of_host.clear();
		CHECK(cudaMemset(sums, 0, MOST * sizeof *sums));
		CHECK(cudaDeviceSynchronize());
	}
	void add(const void *data, size_t bytes, cudaStream_t stream = 0)
	{
		if (count == MOST)
			abort();
		checksum<<<512, THREADS, 0, stream>>>((const Word *)data, bytes / sizeof(Word), sums + count++);
	}
	std::vector<Sum> end()
	{
		std::vector<Sum> all(count);
		CHECK(cudaGetLastError());
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaMemcpy(all.data(), sums, count * sizeof *sums, cudaMemcpyDeviceToHost));
		all.insert(all.end(), of_host.begin(), of_host.end());
		return all;
	}
};

using Round = std::function<void(Steps &)>;

template <typename T> static T *device(size_t count)
{
	T *memory;
	CHECK(cudaMalloc(&memory, count * sizeof(T)));
	CHECK(cudaMemset(memory, 0, count * sizeof(T)));
	return memory;
}

static int multiprocessors()
{
	int count;
	CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
	return count;
}

static Round in_place()
{
	Word *data = device<Word>(WORDS);
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS>>>(data, WORDS, 1);
		for (Word i = 0; i < 200; i++) {
			mix<<<BLOCKS, THREADS>>>(data, WORDS, i % 10 ? ROUNDS : 20 * ROUNDS, i);
			if (i % 5 == 0)
				steps.add(data, WORDS * sizeof *data);
		}
	};
}

static Round atomic_operations()
{
	const Word count = 16; // more than 1 MiB: less would not be swapped
	Atomics *a = device<Atomics>(count);
	return [=](Steps &steps) {
		CHECK(cudaMemsetAsync(a, 0, count * sizeof *a));
		for (Word i = 0; i < 100; i++) {
			atomics<<<BLOCKS / 4, THREADS>>>(a + i % count, ROUNDS, i);
			steps.add(a, count * sizeof *a);
		}
	};
}

static Round scans()
{
	Word *data = device<Word>(WORDS), *sorted = device<Word>(WORDS), *ticket = device<Word>(1);
	Sum *status = device<Sum>(WORDS / TILE);
	size_t scan_bytes = 0, sort_bytes = 0;
	CHECK(cub::DeviceScan::InclusiveSum(nullptr, scan_bytes, data, data, (int)WORDS));
	CHECK(cub::DeviceRadixSort::SortKeys(nullptr, sort_bytes, data, sorted, (int)WORDS));
	size_t most = scan_bytes > sort_bytes ? scan_bytes : sort_bytes;
	char *scratch = device<char>(most);
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS>>>(data, WORDS, 2);
		for (Word i = 0; i < 40; i++) {
			CHECK(cudaMemsetAsync(status, 0, WORDS / TILE * sizeof *status));
			look_back<false><<<WORDS / TILE, TILE>>>(data, WORDS, status, ticket, ROUNDS);
			CHECK(cudaMemsetAsync(status, 0, WORDS / TILE * sizeof *status));
			CHECK(cudaMemsetAsync(ticket, 0, sizeof *ticket));
			look_back<true><<<WORDS / TILE, TILE>>>(data, WORDS, status, ticket, ROUNDS);
			steps.add(data, WORDS * sizeof *data);
			size_t bytes = scan_bytes;
			CHECK(cub::DeviceScan::InclusiveSum(scratch, bytes, data, data, (int)WORDS));
			mix<<<BLOCKS, THREADS>>>(data, WORDS, ROUNDS, i);
			bytes = sort_bytes;
			CHECK(cub::DeviceRadixSort::SortKeys(scratch, bytes, data, sorted, (int)WORDS));
			gather<<<BLOCKS, THREADS>>>(data, sorted, WORDS, ROUNDS, i);
			steps.add(data, WORDS * sizeof *data);
		}
	};
}

static Round cooperative_launches()
{
	Word *one = device<Word>(WORDS), *other = device<Word>(WORDS);
	int each;
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, cooperative, THREADS, 0));
	int blocks = each * multiprocessors();
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS>>>(one, WORDS, 3);
		fill<<<BLOCKS, THREADS>>>(other, WORDS, 4);
		for (Word i = 0; i < 60; i++) {
			mix<<<BLOCKS, THREADS>>>(i % 2 ? one : other, WORDS, ROUNDS, i);
			Word n = WORDS, phases = 4 + i % 3;
			void *parameters[] = {(void *)&one, (void *)&other, &n, &phases, &i};
			CHECK(cudaLaunchCooperativeKernel((const void *)cooperative, dim3(blocks), dim3(THREADS),
							  parameters, 0, 0));
			mix<<<BLOCKS, THREADS>>>(one, WORDS, ROUNDS, i);
			steps.add(one, WORDS * sizeof *one);
			steps.add(other, WORDS * sizeof *other);
		}
	};
}

// Grids that fit on the GPU at once, whose blocks wait for each other in any order.
static Round marlin()
{
	enum { SLICES = 4 };
	int blocks = 2 * multiprocessors() / SLICES * SLICES, each;
	Word *data = device<Word>(WORDS), *one = device<Word>(WORDS), *locks = device<Word>(blocks),
	     *arrived = device<Word>(1);
	CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, all_together, THREADS, 0));
	int together = each * multiprocessors();
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS>>>(data, WORDS, 21);
		fill<<<BLOCKS, THREADS>>>(one, WORDS, 22);
		CHECK(cudaMemsetAsync(arrived, 0, sizeof *arrived));
		for (Word i = 0; i < 60; i++) {
			for (Word k = 0; k < 4; k++)
				later_first<<<blocks, THREADS>>>(data, SLICES, 10 * ROUNDS, i + k, locks);
			all_together<<<together, THREADS>>>(one, data, WORDS, 4 + i % 3, i, arrived);
			mix<<<BLOCKS, THREADS>>>(data, WORDS, ROUNDS, i);
			if (i % 5 == 0)
				steps.add(data, WORDS * sizeof *data);
		}
		steps.add(one, WORDS * sizeof *one);
	};
}

static Round lamport()
{
	Word *data = device<Word>(WORDS), *arrived = device<Word>(1);
	int blocks = 2 * multiprocessors();
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS>>>(data, WORDS, 23);
		for (Word i = 0; i < 100; i++) {
			first_last<<<blocks, THREADS>>>(data, 10 * ROUNDS, i, arrived);
			mix<<<BLOCKS, THREADS>>>(data, WORDS, ROUNDS, i);
			first_last<<<blocks / 2, THREADS>>>(data, ROUNDS, i, arrived);
			if (i % 5 == 0)
				steps.add(data, WORDS * sizeof *data);
		}
	};
}

// Grids that do not fit, of which a stop may keep what the rest waits for from running; in launches and in a graph. And
// launches on two streams that wait for each other.
static Round exceeding()
{
	Word *data = device<Word>(WORDS), *other = device<Word>(WORDS), *arrived = device<Word>(1),
	     *locks = device<Word>(BLOCKS);
	Word *met = device<Word>(2);
	cudaStream_t stream, second;
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
	cudaGraph_t graph;
	cudaGraphExec_t instance;
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	first_last<<<BLOCKS, THREADS, 0, stream>>>(data, ROUNDS, 24, arrived);
	mix<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, ROUNDS, 25);
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&instance, graph, 0));
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, 26);
		fill<<<BLOCKS, THREADS, 0, stream>>>(other, WORDS, 27);
		CHECK(cudaMemsetAsync(met, 0, 2 * sizeof *met, stream));
		CHECK(cudaStreamSynchronize(stream));
		for (Word i = 0; i < 40; i++) {
			first_last<<<BLOCKS, THREADS, 0, stream>>>(data, ROUNDS, i, arrived);
			later_first<<<BLOCKS, THREADS, 0, stream>>>(data, 2, ROUNDS, i, locks);
			CHECK(cudaGraphLaunch(instance, stream));
			mix<<<BLOCKS, THREADS, 0, second>>>(other, WORDS, ROUNDS, i);
			meet<<<1, THREADS, 0, stream>>>(data, ROUNDS, i, &met[0], &met[1], i + 1);
			meet<<<1, THREADS, 0, second>>>(other, ROUNDS, i, &met[1], &met[0], i + 1);
			if (i % 5 == 0) {
				steps.add(data, WORDS * sizeof *data, stream);
				steps.add(other, WORDS * sizeof *other, second);
			}
		}
	};
}

static Round clusters()
{
	Word *data = device<Word>(WORDS);
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS>>>(data, WORDS, 5);
		for (Word i = 0; i < 100; i++) {
			cluster_of_four<<<BLOCKS, THREADS>>>(data, ROUNDS / 2, i);
			cudaLaunchAttribute attribute = {};
			attribute.id = cudaLaunchAttributeClusterDimension;
			attribute.val.clusterDim = {i % 2 ? 8u : 2u, 1, 1};
			cudaLaunchConfig_t config = {};
			config.gridDim = BLOCKS;
			config.blockDim = THREADS;
			config.attrs = &attribute;
			config.numAttrs = 1;
			CHECK(cudaLaunchKernelEx(&config, cluster_of_any, data, (Word)ROUNDS / 2, i));
			if (i % 3 == 0)
				steps.add(data, WORDS * sizeof *data);
		}
	};
}

// Chains across streams by events, forks and joins, and the implicit order of the legacy stream.
static Round streams()
{
	enum { STREAMS = 6, PART = WORDS / STREAMS / THREADS * THREADS };
	Word *data = device<Word>(WORDS), *other = device<Word>(WORDS);
	std::vector<cudaStream_t> stream(STREAMS), blocking(2);
	std::vector<cudaEvent_t> event(STREAMS);
	int least, greatest;
	CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
	for (int i = 0; i < STREAMS; i++) {
		CHECK(cudaStreamCreateWithPriority(&stream[i], cudaStreamNonBlocking, i % 2 ? least : greatest));
		CHECK(cudaEventCreateWithFlags(&event[i], i % 2 ? cudaEventDisableTiming : cudaEventDefault));
	}
	for (auto &s : blocking)
		CHECK(cudaStreamCreate(&s));
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS>>>(data, WORDS, 6);
		fill<<<BLOCKS, THREADS>>>(other, WORDS, 7);
		CHECK(cudaStreamSynchronize(0));
		// One after another, each on the next stream.
		for (Word i = 0; i < 60; i++) {
			mix<<<BLOCKS, THREADS, 0, stream[i % STREAMS]>>>(data, WORDS, ROUNDS, i);
			CHECK(cudaEventRecord(event[i % STREAMS], stream[i % STREAMS]));
			CHECK(cudaStreamWaitEvent(stream[(i + 1) % STREAMS], event[i % STREAMS], 0));
			if (i % 20 == 7) {
				while (cudaEventQuery(event[i % STREAMS]) == cudaErrorNotReady)
					;
			} else if (i % 20 == 17) {
				CHECK(cudaEventSynchronize(event[i % STREAMS]));
			}
		}
		steps.add(data, WORDS * sizeof *data, stream[0]); // it waits for the last
		CHECK(cudaEventRecord(event[0], stream[0]));
		// Apart, then together, several times.
		for (Word i = 0; i < 10; i++) {
			for (int s = 1; s < STREAMS; s++) {
				CHECK(cudaStreamWaitEvent(stream[s], event[0], 0));
				for (Word k = 0; k < 4; k++)
					mix<<<PART / THREADS, THREADS, 0, stream[s]>>>(data + s * PART, PART, ROUNDS,
										       k + i);
				CHECK(cudaEventRecord(event[s], stream[s]));
				CHECK(cudaStreamWaitEvent(stream[0], event[s], 0));
			}
			gather<<<BLOCKS, THREADS, 0, stream[0]>>>(other, data, WORDS, ROUNDS, i);
			steps.add(other, WORDS * sizeof *other, stream[0]);
			CHECK(cudaEventRecord(event[0], stream[0]));
		}
		CHECK(cudaStreamSynchronize(stream[0]));
		// Blocking streams and the legacy stream order one another without events.
		for (Word i = 0; i < 20; i++) {
			mix<<<BLOCKS, THREADS, 0, blocking[0]>>>(data, WORDS, ROUNDS, i);
			mix<<<BLOCKS, THREADS, 0, blocking[1]>>>(other, WORDS, ROUNDS, i);
			gather<<<BLOCKS, THREADS>>>(data, other, WORDS, ROUNDS, i);
			gather<<<BLOCKS, THREADS, 0, blocking[i % 2]>>>(other, data, WORDS, ROUNDS, i);
			steps.add(other, WORDS * sizeof *other);
		}
	};
}

struct Landed {
	const Word *data;
	size_t words;
	Sum sum;
};

static void look(void *landed_)
{
	auto *landed = (Landed *)landed_;
	landed->sum = 14695981039346656037ull;
	for (size_t i = 0; i < landed->words; i++)
		landed->sum = (landed->sum ^ landed->data[i]) * 1099511628211ull;
}

// Copies of all kinds and memsets behind kernels and before them, and host functions.
static Round copies()
{
	enum { LANDED = 40, PART = 1 << 16 };
	Word *data = device<Word>(WORDS), *copy = device<Word>(WORDS), *in, *out,
	     *pageable = (Word *)malloc(WORDS * sizeof(Word));
	CHECK(cudaMallocHost(&in, WORDS * sizeof *in));
	CHECK(cudaMallocHost(&out, LANDED * PART * sizeof *out));
	static Landed landed[LANDED];
	cudaStream_t stream, second;
	cudaEvent_t taken;
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
	CHECK(cudaEventCreateWithFlags(&taken, cudaEventDisableTiming));
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, 8);
		fill<<<BLOCKS, THREADS, 0, stream>>>(copy, WORDS, 9);
		for (Word i = 0; i < LANDED; i++) {
			Word *landing = out + i * PART, *quarter = data + i % 4 * (WORDS / 4);
			mix<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, ROUNDS, i);
			// To the host while the next kernel waits: what lands is what the kernel before it left.
			CHECK(cudaMemcpyAsync(landing, data + i * PART % WORDS, PART * sizeof *data,
					      cudaMemcpyDeviceToHost, stream));
			landed[i] = {landing, PART, 0};
			// A launch behind a host function can't be stopped before that has run: not behind each.
			if (i % 8 == 4)
				CHECK(cudaLaunchHostFunc(stream, look, &landed[i]));
			mix<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, ROUNDS, i + 1);
			CHECK(cudaMemcpyAsync(copy + WORDS / 2, quarter, WORDS / 4 * sizeof *copy,
					      cudaMemcpyDeviceToDevice, stream));
			gather<<<BLOCKS, THREADS, 0, stream>>>(data, copy, WORDS, ROUNDS, i);
			CHECK(cudaMemsetAsync(quarter, i, PART * sizeof *data, stream));
			CHECK(cudaMemset2DAsync(data + 5, 4096, i + 1, 64, 100, stream));
			mix<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, ROUNDS, i + 2);
			// From the host into what the kernel before it reads.
			CHECK(cudaEventSynchronize(taken));
			for (Word k = 0; k < PART; k++)
				in[k] = k * i + 1;
			CHECK(cudaMemcpyAsync(data + WORDS / 2, in, PART * sizeof *data, cudaMemcpyHostToDevice, stream));
			CHECK(cudaEventRecord(taken, stream));
			// Another stream goes on from here.
			CHECK(cudaStreamWaitEvent(second, taken, 0));
			gather<<<BLOCKS, THREADS, 0, second>>>(copy, data, WORDS, ROUNDS, i);
			CHECK(cudaMemcpyAsync(copy, data, PART * sizeof *copy, cudaMemcpyDefault, second));
			CHECK(cudaEventRecord(taken, second));
			CHECK(cudaStreamWaitEvent(stream, taken, 0));
			if (i % 8 == 0) {
				Word *passing;
				CHECK(cudaMallocAsync((void **)&passing, WORDS * sizeof *passing, stream));
				CHECK(cudaMemcpyAsync(passing, data, WORDS * sizeof *passing, cudaMemcpyDeviceToDevice,
						      stream));
				mix<<<BLOCKS, THREADS, 0, stream>>>(passing, WORDS, ROUNDS, i);
				gather<<<BLOCKS, THREADS, 0, stream>>>(data, passing, WORDS, ROUNDS, i);
				CHECK(cudaFreeAsync(passing, stream));
				CHECK(cudaMemcpyAsync(pageable, data, PART * sizeof *data, cudaMemcpyDeviceToHost, stream));
				CHECK(cudaStreamSynchronize(stream));
				Landed seen = {pageable, PART, 0};
				look(&seen);
				steps.of_host.push_back(seen.sum);
				CHECK(cudaMemcpyAsync(copy + i * PART % WORDS, pageable, PART * sizeof *copy,
						      cudaMemcpyHostToDevice, stream));
			}
			steps.add(data, WORDS * sizeof *data, stream);
			steps.add(copy, WORDS * sizeof *copy, stream);
		}
		CHECK(cudaStreamSynchronize(stream));
		for (Word i = 0; i < LANDED; i++) {
			if (i % 8 != 4)
				look(&landed[i]);
			steps.of_host.push_back(landed[i].sum);
		}
	};
}

static void capture(cudaStream_t stream, cudaGraph_t *graph, const std::function<void()> &work)
{
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	work();
	CHECK(cudaStreamEndCapture(stream, graph));
}

// Graphs of kernels only, with a fork, with copies and memsets; updated as a whole and by node; launched among
// ordinary kernels.
static Round graphs()
{
	Word *data = device<Word>(WORDS), *other = device<Word>(WORDS);
	cudaStream_t stream, side;
	cudaEvent_t fork, join;
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
	CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
	CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
	auto chain = [=](Word seed) {
		for (Word k = 0; k < 10; k++)
			mix<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, ROUNDS, seed + k);
	};
	auto forked = [=] {
		CHECK(cudaEventRecord(fork, stream));
		CHECK(cudaStreamWaitEvent(side, fork, 0));
		for (Word k = 0; k < 5; k++) {
			mix<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, ROUNDS, k);
			mix<<<BLOCKS, THREADS, 0, side>>>(other, WORDS, ROUNDS, k);
		}
		CHECK(cudaEventRecord(join, side));
		CHECK(cudaStreamWaitEvent(stream, join, 0));
		gather<<<BLOCKS, THREADS, 0, stream>>>(data, other, WORDS, ROUNDS, 1);
	};
	auto mixed = [=] {
		mix<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, ROUNDS, 3);
		CHECK(cudaMemcpyAsync(other, data, WORDS / 2 * sizeof *other, cudaMemcpyDeviceToDevice, stream));
		CHECK(cudaMemsetAsync(data, 7, 4096, stream));
		gather<<<BLOCKS, THREADS, 0, stream>>>(data, other, WORDS, ROUNDS, 4);
	};
	cudaGraph_t chained[2], forked_graph, mixed_graph;
	capture(stream, &chained[0], [&] { chain(100); });
	capture(stream, &chained[1], [&] { chain(200); });
	capture(stream, &forked_graph, forked);
	capture(stream, &mixed_graph, mixed);
	cudaGraphExec_t chain_exec, forked_exec, mixed_exec, node_exec;
	CHECK(cudaGraphInstantiate(&chain_exec, chained[0], 0));
	CHECK(cudaGraphInstantiate(&node_exec, chained[0], 0));
	CHECK(cudaGraphInstantiate(&forked_exec, forked_graph, 0));
	CHECK(cudaGraphInstantiate(&mixed_exec, mixed_graph, 0));
	std::vector<cudaGraphNode_t> nodes(10);
	size_t count = nodes.size();
	CHECK(cudaGraphGetNodes(chained[0], nodes.data(), &count));
	return [=](Steps &steps) {
		fill<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, 10);
		fill<<<BLOCKS, THREADS, 0, stream>>>(other, WORDS, 11);
		for (Word i = 0; i < 15; i++) {
			cudaGraphExecUpdateResultInfo info = {};
			CHECK(cudaGraphExecUpdate(chain_exec, chained[i % 2], &info));
			CHECK(cudaGraphLaunch(chain_exec, stream));
			mix<<<BLOCKS, THREADS, 0, stream>>>(data, WORDS, ROUNDS, i);
			CHECK(cudaGraphLaunch(chain_exec, stream));
			CHECK(cudaGraphLaunch(forked_exec, stream));
			steps.add(data, WORDS * sizeof *data, stream);
			cudaKernelNodeParams parameters = {};
			CHECK(cudaGraphKernelNodeGetParams(nodes[i % nodes.size()], &parameters));
			Word n = WORDS, rounds = ROUNDS / 2 + i, seed = i;
			Word *memory = data;
			void *values[] = {&memory, &n, &rounds, &seed};
			parameters.kernelParams = values;
			CHECK(cudaGraphExecKernelNodeSetParams(node_exec, nodes[i % nodes.size()], &parameters));
			CHECK(cudaGraphLaunch(node_exec, stream));
			CHECK(cudaGraphLaunch(mixed_exec, stream));
			mix<<<BLOCKS, THREADS, 0, stream>>>(other, WORDS, ROUNDS, i);
			steps.add(data, WORDS * sizeof *data, stream);
			steps.add(other, WORDS * sizeof *other, stream);
		}
		// The next round starts with the parameters of this one's start.
		cudaGraphExecUpdateResultInfo info = {};
		CHECK(cudaStreamSynchronize(stream));
		CHECK(cudaGraphExecUpdate(node_exec, chained[0], &info));
	};
}

// ---- the program

static const struct {
	const char *name;
	Round (*set_up)();
} cases[] = {
	{"in-place", in_place},   {"atomics", atomic_operations},
	{"scans", scans},         {"cooperative", cooperative_launches},
	{"clusters", clusters},   {"streams", streams},
	{"copies", copies},       {"graphs", graphs},
	{"marlin", marlin},       {"lamport", lamport},
	{"exceeding", exceeding},
};

static std::vector<Sum> run(const Round &round, Steps &steps)
{
	steps.begin();
	round(steps);
	return steps.end();
}

static bool input_waits()
{
	pollfd input = {0, POLLIN, 0};
	return poll(&input, 1, 0) != 0;
}

int main(int count, char **values)
{
	for (auto &one : cases) {
		if (count != 2 || strcmp(values[1], one.name))
			continue;
		char line[16];
		if (!fgets(line, sizeof line, stdin) || strcmp(line, "init\n"))
			return 0;
		Round round = one.set_up();
		Steps steps;
		std::vector<Sum> first = run(round, steps);
		std::string text;
		for (Sum sum : first) {
			char hex[32];
			snprintf(hex, sizeof hex, "%s\"%016llx\"", text.empty() ? "" : ",", sum);
			text += hex;
		}
		printf("{\"steps\":[%s]}\n", text.c_str());
		fflush(stdout);
		while (fgets(line, sizeof line, stdin) && !strcmp(line, "start\n")) {
			printf("{}\n");
			fflush(stdout);
			int rounds = 0, different = 0, first_round = 0;
			size_t first_step = 0;
			auto began = std::chrono::steady_clock::now();
			do {
				std::vector<Sum> now = run(round, steps);
				rounds++;
				if (now != first && !different++) {
					first_round = rounds;
					while (first_step < first.size() && now[first_step] == first[first_step])
						first_step++;
				}
			} while (!input_waits());
			if (!fgets(line, sizeof line, stdin))
				return 0;
			printf("{\"rounds\":%d,\"different\":%d,\"first_different\":[%d,%zu],\"seconds\":%.3f}\n",
			       rounds, different, first_round, first_step,
			       std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
			fflush(stdout);
		}
		return 0;
	}
	fprintf(stderr, "usage: native CASE\n");
	return 2;
}
