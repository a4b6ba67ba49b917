// A kernel whose address the device takes, and may start it by.
__device__ int value;
// refused: * child: its address is taken in
extern "C" __global__ void child(int n) { value = n; }
extern "C" __global__ void parent(void **out) { out[0] = (void *)child; }
