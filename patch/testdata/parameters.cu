// Parameters of many sizes, templates, limits on registers, textures and surfaces.
template <int bytes> struct Block { char data[bytes]; };

template <int bytes> __global__ void block(Block<bytes> b, int *p) { p[0] = b.data[p[1]]; }

template __global__ void block<1>(Block<1>, int *);
template __global__ void block<13>(Block<13>, int *);
template __global__ void block<1000>(Block<1000>, int *);
template __global__ void block<4068>(Block<4068>, int *);
template __global__ void block<4080>(Block<4080>, int *);
template __global__ void block<4088>(Block<4088>, int *);
// refused: before sm_90 _Z5blockILi4341EEv5BlockIXT_EEPi: 4352 bytes of parameters leave no room
template __global__ void block<4341>(Block<4341>, int *);
template __global__ void block<16383>(Block<16383>, int *);
template __global__ void block<16384>(Block<16384>, int *);
template __global__ void block<32744>(Block<32744>, int *);
// refused: * _Z5blockILi32752EEv5BlockIXT_EEPi: 32760 bytes of parameters leave no room
template __global__ void block<32752>(Block<32752>, int *);

extern "C" __global__ void grid_constant(int *p, const __grid_constant__ Block<512> b)
{
	const char *data = b.data;
	p[threadIdx.x] = data[p[threadIdx.x]];
}

template <typename T> __global__ void add(T *a, const T *b, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		a[i] = a[i] + b[i];
}

template __global__ void add<double>(double *, const double *, int);
template __global__ void add<short>(short *, const short *, int);

template <int count> static __device__ void accumulate(float *p)
{
	float values[count];
#pragma unroll
	for (int i = 0; i < count; i++)
		values[i] = p[i * 32];
#pragma unroll
	for (int i = 0; i < count; i++)
		p[i * 64] = values[i] * values[(i + 1) % count] + values[(i + 7) % count];
}

extern "C" __global__ void __launch_bounds__(1024, 2) few_registers(float *p) { accumulate<16>(p); }
extern "C" __global__ void __launch_bounds__(128, 1) many_registers(float *p) { accumulate<230>(p); }
extern "C" __global__ void __maxnreg__(24) limited_registers(float *p) { accumulate<20>(p); }

extern "C" __global__ void textures(cudaTextureObject_t texture, cudaSurfaceObject_t surface, float *p)
{
	float v = tex2D<float>(texture, threadIdx.x + .5f, p[0]) + tex3D<float>(texture, p[0], p[1], p[2]);
	surf2Dwrite(v, surface, threadIdx.x * 4, blockIdx.x);
	p[threadIdx.x] = v + surf2Dread<float>(surface, 4, 4);
}
