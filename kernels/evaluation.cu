// Kernels of the workloads of `gpreempt bench --suite paper` that are no neural networks: a stencil code in the
// manner of miniWeather, and four graph algorithms. All update memory in place, most by atomics: a launch that ran
// twice or not at all would change the result. And the product of matrices of `gpreempt bench --suite stalls`.
#include <cstdint>

// ---- The stencil: dry Euler equations in two dimensions, as in miniWeather (Norman, ORNL): four fields of
// doubles with two halo cells at each side, fourth-order fluxes with hyperviscosity, three Runge-Kutta stages.
enum { DENSITY, X_MOMENTUM, Z_MOMENTUM, HEAT, FIELDS };
static constexpr int HALO = 2;
static constexpr double VISCOSITY = 0.05 / 16 / 0.001; // miniWeather's for a step of 0.001

static __device__ __forceinline__ size_t cell(int field, int x, int z, int nx, int nz)
{
	return ((size_t)field * (nz + 2 * HALO) + z + HALO) * (nx + 2 * HALO) + x + HALO;
}

extern "C" __global__ void evaluation_weather_init(double *state, int nx, int nz)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x - HALO, z = blockIdx.y - HALO;
	if (x >= nx + HALO)
		return;
	double dx = (x - nx / 2) / (nx / 8.0), dz = (z - nz / 2) / (nz / 8.0);
	double inside = dx * dx + dz * dz;
	state[cell(DENSITY, x, z, nx, nz)] = 0;
	state[cell(X_MOMENTUM, x, z, nx, nz)] = 1;
	state[cell(Z_MOMENTUM, x, z, nx, nz)] = 0;
	state[cell(HEAT, x, z, nx, nz)] = inside < 1 ? 3 * (1 - inside) : 0;
}

// Both directions are periodic.
extern "C" __global__ void evaluation_weather_halo(double *state, int nx, int nz, int along_z)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x, field = blockIdx.y;
	if (i >= (along_z ? nx : nz))
		return;
	for (int h = 1; h <= HALO; h++) {
		if (along_z) {
			state[cell(field, i, -h, nx, nz)] = state[cell(field, i, nz - h, nx, nz)];
			state[cell(field, i, nz + h - 1, nx, nz)] = state[cell(field, i, h - 1, nx, nz)];
		} else {
			state[cell(field, -h, i, nx, nz)] = state[cell(field, nx - h, i, nx, nz)];
			state[cell(field, nx + h - 1, i, nx, nz)] = state[cell(field, h - 1, i, nx, nz)];
		}
	}
}

// The fluxes through the face before cell (x, z).
static __device__ __forceinline__ void fluxes(const double *state, int x, int z, int nx, int nz, int along_z,
					      double viscosity, double *flux)
{
	double value[FIELDS], third[FIELDS];
	for (int f = 0; f < FIELDS; f++) {
		double s[4];
		for (int i = 0; i < 4; i++)
			s[i] = state[along_z ? cell(f, x, z + i - 2, nx, nz) : cell(f, x + i - 2, z, nx, nz)];
		value[f] = (-s[0] + 7 * (s[1] + s[2]) - s[3]) / 12;
		third[f] = -s[0] + 3 * (s[1] - s[2]) + s[3];
	}
	double density = value[DENSITY] + 1, u = value[X_MOMENTUM] / density, w = value[Z_MOMENTUM] / density;
	double heat = (value[HEAT] + 300) / density;
	double pressure = 27.5629 * pow(density * heat, 1.4); // miniWeather's C0 and gamma
	double through = along_z ? w : u;
	flux[DENSITY] = density * through;
	flux[X_MOMENTUM] = density * through * u + (along_z ? 0 : pressure);
	flux[Z_MOMENTUM] = density * through * w + (along_z ? pressure : 0);
	flux[HEAT] = density * through * heat;
	for (int f = 0; f < FIELDS; f++)
		flux[f] -= viscosity * third[f];
}

extern "C" __global__ void __launch_bounds__(256)
	evaluation_weather_tendencies(const double *state, double *tendency, int nx, int nz, int along_z)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, z = blockIdx.y;
	if (x >= nx)
		return;
	double before[FIELDS], after[FIELDS];
	fluxes(state, x, z, nx, nz, along_z, VISCOSITY, before);
	fluxes(state, x + !along_z, z + !!along_z, nx, nz, along_z, VISCOSITY, after);
	for (int f = 0; f < FIELDS; f++)
		tendency[cell(f, x, z, nx, nz)] = before[f] - after[f];
}

extern "C" __global__ void __launch_bounds__(256)
	evaluation_weather_update(const double *from, double *to, const double *tendency, int nx, int nz, double step)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, z = blockIdx.y;
	if (x >= nx)
		return;
	for (int f = 0; f < FIELDS; f++) {
		size_t i = cell(f, x, z, nx, nz);
		to[i] = from[i] + step * tendency[i];
	}
}

// ---- Graphs, in compressed rows: the edges of vertex v are column[row[v]] to column[row[v + 1]] - 1.

extern "C" __global__ void evaluation_fill(uint32_t *word, uint32_t n, uint32_t value, uint32_t step)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		word[i] = value + i * step;
}

static __device__ __forceinline__ uint32_t weight(uint32_t edge) { return 1 + (edge * 2654435761u >> 26); }

// One round from the vertices of a frontier, a warp for each. Distances shrink in place; a vertex whose distance
// shrank is in the next frontier, once. With weighted = 0 this is a breadth-first search. count[0] is the length
// of the frontier, count[1] that of the next.
extern "C" __global__ void __launch_bounds__(256)
	evaluation_relax(const uint32_t *row, const uint32_t *column, uint32_t *distance, uint32_t *queued,
			 const uint32_t *frontier, uint32_t *next, uint32_t *count, uint32_t round, uint32_t weighted)
{
	uint32_t lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x / 32);
	uint32_t length = count[0];
	for (uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < length; i += warps) {
		uint32_t vertex = frontier[i], so_far = atomicAdd(&distance[vertex], 0);
		for (uint32_t edge = row[vertex] + lane; edge < row[vertex + 1]; edge += 32) {
			uint32_t to = column[edge], found = so_far + (weighted ? weight(edge) : 1);
			if (atomicMin(&distance[to], found) > found && atomicExch(&queued[to], round) != round)
				next[atomicAdd(&count[1], 1)] = to;
		}
	}
}

// The next frontier becomes the frontier.
extern "C" __global__ void evaluation_advance(uint32_t *count)
{
	count[0] = count[1];
	count[1] = 0;
}

// Smallest labels spread over both ends of the edges. *changed is set where one did.
extern "C" __global__ void __launch_bounds__(256)
	evaluation_components(const uint32_t *row, const uint32_t *column, uint32_t n, uint32_t *label, uint32_t *changed)
{
	uint32_t lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x / 32);
	for (uint32_t v = (blockIdx.x * blockDim.x + threadIdx.x) / 32; v < n; v += warps)
		for (uint32_t edge = row[v] + lane; edge < row[v + 1]; edge += 32) {
			uint32_t to = column[edge], mine = label[v], others = label[to];
			if (mine < others && atomicMin(&label[to], mine) > mine)
				*changed = 1;
			else if (others < mine && atomicMin(&label[v], others) > others)
				*changed = 1;
		}
}

// Ranks are fixed-point numbers, so that the order of the additions does not change the sum.
static constexpr unsigned long long ONE = 1ull << 40;

extern "C" __global__ void evaluation_rank_init(unsigned long long *rank, unsigned long long *sum, uint32_t n)
{
	uint32_t v = blockIdx.x * blockDim.x + threadIdx.x;
	if (v < n)
		rank[v] = ONE, sum[v] = 0;
}

extern "C" __global__ void __launch_bounds__(256)
	evaluation_rank_push(const uint32_t *row, const uint32_t *column, uint32_t n, const unsigned long long *rank,
			     unsigned long long *sum)
{
	uint32_t lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x / 32);
	for (uint32_t v = (blockIdx.x * blockDim.x + threadIdx.x) / 32; v < n; v += warps) {
		uint32_t first = row[v], last = row[v + 1];
		if (first == last)
			continue;
		unsigned long long part = rank[v] / (last - first);
		for (uint32_t edge = first + lane; edge < last; edge += 32)
			atomicAdd(&sum[column[edge]], part);
	}
}

extern "C" __global__ void evaluation_rank_apply(unsigned long long *rank, unsigned long long *sum, uint32_t n)
{
	uint32_t v = blockIdx.x * blockDim.x + threadIdx.x;
	if (v < n) {
		rank[v] = ONE * 15 / 100 + sum[v] / 100 * 85;
		sum[v] = 0;
	}
}

// ---- A product of half-precision matrices on the tensor cores, sums in single precision.
static constexpr int TILE = 64, DEPTH = 32; // a block makes TILE x TILE of the result, from DEPTH columns at a time
static constexpr int PITCH = DEPTH / 2 + 4; // of a row in shared memory, in pairs of halves: no two of a column share a bank

// c = a times b transposed, all n x n by rows in pairs of halves, n a multiple of TILE. 128 threads: each of the four
// warps makes a quarter of the tile. The layout of the fragments is that of mma.m16n8k16 in the PTX manual.
extern "C" __global__ void __launch_bounds__(128)
	evaluation_gemm(const uint32_t *a, const uint32_t *b, uint32_t *c, uint32_t n)
{
	__shared__ uint32_t rows[TILE][PITCH], columns[TILE][PITCH];
	uint32_t pairs = n / 2, tiles = n / TILE;
	uint32_t first_row = blockIdx.x / tiles * TILE, first_column = blockIdx.x % tiles * TILE;
	uint32_t warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
	uint32_t row = warp / 2 * 32 + group, column = warp % 2 * 32 + group;
	float sum[2][4][4] = {};
	for (uint32_t k = 0; k < pairs; k += DEPTH / 2) {
		for (uint32_t i = threadIdx.x; i < TILE * DEPTH / 2; i += 128) {
			uint32_t y = i / (DEPTH / 2), x = i % (DEPTH / 2);
			rows[y][x] = a[(first_row + y) * pairs + k + x];
			columns[y][x] = b[(first_column + y) * pairs + k + x];
		}
		__syncthreads();
		for (uint32_t at = member; at < DEPTH / 2; at += 8)
			for (int i = 0; i < 2; i++)
				for (int j = 0; j < 4; j++)
					asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
					    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
					    : "+f"(sum[i][j][0]), "+f"(sum[i][j][1]), "+f"(sum[i][j][2]), "+f"(sum[i][j][3])
					    : "r"(rows[row + 16 * i][at]), "r"(rows[row + 16 * i + 8][at]),
					      "r"(rows[row + 16 * i][at + 4]), "r"(rows[row + 16 * i + 8][at + 4]),
					      "r"(columns[column + 8 * j][at]), "r"(columns[column + 8 * j][at + 4]));
		__syncthreads();
	}
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 4; j++)
			for (int half = 0; half < 2; half++) {
				uint32_t y = first_row + row + 16 * i + 8 * half,
					 x = (first_column + warp % 2 * 32 + 8 * j) / 2 + member;
				asm("cvt.rn.f16x2.f32 %0, %1, %2;"
				    : "=r"(c[y * pairs + x])
				    : "f"(sum[i][j][2 * half + 1]), "f"(sum[i][j][2 * half]));
			}
}
