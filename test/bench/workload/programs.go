package workload

// Program is a script that uses a public package as its users do, and prints a checksum of what it computed.
type Program struct {
	Name, About string // the name is that of its file
	GPUs        int    // 0: one
	Identity    bool   // it belongs to suite identity, too
}

// Programs are those of torch/programs, in the order of the table.
var Programs = []Program{
	{Name: "training", About: "PyTorch: training with deterministic algorithms", Identity: true},
	{Name: "streams", About: "PyTorch: streams of several priorities, threads, events", Identity: true},
	{Name: "graphs", About: "PyTorch: CUDA graphs, updated between replays; a captured training step", Identity: true},
	{Name: "memory_churn", About: "PyTorch: allocations of many sizes, pinned memory, statistics", Identity: true},
	{Name: "cudnn_benchmark", About: "PyTorch: cuDNN's benchmark mode", Identity: true},
	{Name: "dataloader", About: "PyTorch: DataLoader with forked and spawned workers", Identity: true},
	{Name: "cuda_ipc", About: "PyTorch: tensors and events that processes share by CUDA IPC"},
	{Name: "compiled", About: "PyTorch: torch.compile, forward and backward", Identity: true},
	{Name: "max_autotune", About: "PyTorch: torch.compile, max-autotune and CUDA graphs"},
	{Name: "allocators", About: "PyTorch: cudaMallocAsync, expandable segments, a memory pool of one's own"},
	{Name: "profiler", About: "PyTorch: torch.profiler (CUPTI)"},
	{Name: "transformers_generate", About: "transformers: generation by sampling and beams, static cache"},
	{Name: "transformers_train", About: "transformers: training with Trainer, mixed precision"},
	{Name: "with_triton", About: "Triton: kernels of one's own, autotuned"},
	{Name: "with_jax", About: "JAX: jit, scan, random numbers", Identity: true},
	{Name: "jax_training", About: "JAX: training with flax and optax"},
	{Name: "with_cupy", About: "CuPy: raw and element-wise kernels, sorting, streams", Identity: true},
	{Name: "cupy_features", About: "CuPy: graphs, stream-ordered pools, managed and pinned memory, FFT, linear algebra"},
	{Name: "with_numba", About: "numba-cuda: shared memory, atomics, streams", Identity: true},
	{Name: "numba_features", About: "numba-cuda: cooperative grids, reductions, random numbers, a generated ufunc"},
	{Name: "with_tinygrad", About: "tinygrad: training by its CUDA backend, which calls the driver by ctypes"},
	{Name: "with_cuda_core", About: "cuda-python: cuda.core and cuda.bindings, NVRTC, a captured graph"},
	{Name: "with_pycuda", About: "PyCUDA: kernels that nvcc compiles, streams, pinned memory, arrays"},
	{Name: "with_flashinfer", About: "FlashInfer: attention of prompts and of single tokens, normalisation, rotary positions"},
	{Name: "links_libcuda", About: "C: a program that is linked with the driver", Identity: true},
	{Name: "conditional_graphs", About: "C++: graphs with conditional and memory nodes, launched by the device"},
	{Name: "green_contexts", About: "C++: green contexts, whose streams have a part of the SMs"},
	{Name: "virtual_memory", About: "C++: virtual memory, shared between processes by descriptors"},
	{Name: "stream_ordered", About: "C++: stream-ordered pools, reuse across streams, graphs"},
	{Name: "under_cuda_gdb", About: "cuda-gdb: stops in a kernel, reads a variable, goes on"},
	{Name: "under_sanitizer", About: "compute-sanitizer: memcheck and racecheck of a right and of a wrong program"},
	{Name: "under_ncu", About: "Nsight Compute: a counter of each launch"},
	{Name: "ddp", About: "PyTorch: DistributedDataParallel, NCCL", GPUs: 2},
	{Name: "fsdp", About: "PyTorch: fully sharded training", GPUs: 2},
	{Name: "tensor_parallel", About: "PyTorch: tensor parallel layers", GPUs: 2},
	{Name: "nccl_one_process", About: "PyTorch: NCCL in one process, copies between GPUs", GPUs: 2},
}

// Way is how a program is run.
type Way struct {
	Name, Title string
	Role        string
	Mechanisms  string // a line of the configuration; "" for the default
	UnderFire   bool   // beside LC requests at random times
	Evicted     bool   // its memory goes out at random times
}

// Ways are those in which each program is run, beside without the library.
var Ways = []Way{
	{Name: "off", Title: "off", Role: "off"},
	{Name: "lc", Title: "lc", Role: "lc"},
	{Name: "be", Title: "be", Role: "be"},
	{Name: "blp", Title: "be, BLP", Role: "be", Mechanisms: `mechanisms = ["blp"]`},
	{Name: "swap", Title: "be, evicted", Role: "be", Mechanisms: `mechanisms = ["timeslice", "hold", "turns", "swap"]`, Evicted: true},
	{Name: "fire", Title: "be, preempted", Role: "be", UnderFire: true},
	{Name: "blp-fire", Title: "be, BLP, preempted", Role: "be", Mechanisms: `mechanisms = ["blp"]`, UnderFire: true},
}

// Outcomes of a program in one of the ways.
const (
	Same       = "same" // as without the library
	NotEvicted = "same, not evicted"
	NotStopped = "same, not stopped" // by block-level preemption, as far as was seen
	Different  = "different"         // another result
	Fails      = "fails"             // no result
)
