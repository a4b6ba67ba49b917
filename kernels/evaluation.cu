// The work of gemms of `gpreempt bench --suite stalls`: a product of half-precision matrices on the tensor cores, sums in single precision.
#include <cstdint>

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
