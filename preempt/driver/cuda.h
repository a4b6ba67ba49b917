// cuda.h - what is known of NVIDIA's header of that name, so that no CUDA toolkit is needed to build.
#ifndef GPREEMPT_CUDA_H
#define GPREEMPT_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUfunc_st *CUfunction;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUlinkState_st *CUlinkState;
typedef struct CUgreenCtx_st *CUgreenCtx;

// CUlaunchAttribute; the value is a union.
struct gp_launch_attribute {
	int id, pad;
	union {
		char bytes[64];
		int cooperative;
		int priority;
		uint32_t cluster[3];
	} value;
};
_Static_assert(sizeof(struct gp_launch_attribute) == 72, "CUlaunchAttribute");

// CUlaunchConfig
struct gp_launch_config {
	uint32_t grid[3], block[3], shared_bytes;
	CUstream stream;
	const struct gp_launch_attribute *attributes;
	uint32_t attribute_count;
};
_Static_assert(sizeof(struct gp_launch_config) == 56, "CUlaunchConfig");

enum { GP_LAUNCH_ATTRIBUTES = 32 }; // more than there are ids: more attributes are for the driver to refuse, unread

// CUDA_LAUNCH_PARAMS
struct gp_launch_params {
	CUfunction function;
	uint32_t grid[3], block[3], shared_bytes;
	CUstream stream;
	void **parameters;
};
_Static_assert(sizeof(struct gp_launch_params) == 56, "CUDA_LAUNCH_PARAMS");

union gp_stream_attribute { // CUstreamAttrValue
	char bytes[64];
	int priority;
};

// CUDA_KERNEL_NODE_PARAMS_v2; the first version ends before kernel.
struct gp_kernel_node {
	CUfunction function;
	unsigned int grid[3], block[3], shared_bytes;
	void **parameters, **extra;
	CUfunction kernel; // where function is NULL
	CUcontext context;
};
_Static_assert(sizeof(struct gp_kernel_node) == 72 && offsetof(struct gp_kernel_node, kernel) == 56,
	       "CUDA_KERNEL_NODE_PARAMS");

// CUgraphNodeParams, as far as kernels go
struct gp_graph_node {
	int type, reserved[3];
	union {
		long long size[29];
		struct gp_kernel_node kernel;
	} of;
	long long reserved_too;
};
_Static_assert(sizeof(struct gp_graph_node) == 256, "CUgraphNodeParams");

// CUDA_MEMCPY2D
struct gp_copy_2d {
	struct gp_copy_side {
		size_t x_bytes, y;
		int memory_type;
		const void *host;
		CUdeviceptr device;
		void *array;
		size_t pitch;
	} from, to;
	size_t width_bytes, height;
};
_Static_assert(sizeof(struct gp_copy_2d) == 128, "CUDA_MEMCPY2D");

// CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER
struct gp_copy_3d {
	struct gp_copy_3d_side {
		size_t x_bytes, y, z, level;
		int memory_type;
		const void *host;
		CUdeviceptr device;
		void *array, *context; // context: of CUDA_MEMCPY3D_PEER
		size_t pitch, height;
	} from, to;
	size_t width_bytes, height, depth;
};
_Static_assert(sizeof(struct gp_copy_3d) == 200, "CUDA_MEMCPY3D");

struct gp_host_table { // CUlibraryHostUniversalFunctionAndDataTable
	void *functions;
	size_t functions_size;
	void *data;
	size_t data_size;
};

// CUmemAllocationProp
struct gp_allocation_properties {
	int type, handle_types; // CUmemAllocationType; a set of CUmemAllocationHandleType
	int location_type, location;
	void *win32;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};
_Static_assert(sizeof(struct gp_allocation_properties) == 32 && offsetof(struct gp_allocation_properties, flags) == 24,
	       "CUmemAllocationProp");

struct gp_location { int type, id; }; // CUmemLocation

struct gp_pool_properties { // the beginning of CUmemPoolProps, which is all that is read
	int type, handle_types;
	struct gp_location location;
};

struct gp_memory_node { // CUDA_MEM_ALLOC_NODE_PARAMS
	struct gp_pool_properties pool;
	unsigned char rest[72]; // of CUmemPoolProps
	const void *accesses;
	size_t access_count, bytes;
	CUdeviceptr at;
};
_Static_assert(sizeof(struct gp_memory_node) == 120 && offsetof(struct gp_memory_node, bytes) == 104,
	       "CUDA_MEM_ALLOC_NODE_PARAMS");

struct gp_instantiation { // CUDA_GRAPH_INSTANTIATE_PARAMS
	unsigned long long flags;
	CUstream upload;
	CUgraphNode error_node;
	int result; // CUgraphInstantiateResult
};
enum { CUDA_GRAPH_INSTANTIATE_ERROR = 1 };

struct gp_ipc_handle { char bytes[64]; }; // CUipcMemHandle

struct gp_affinity { // CUexecAffinityParam
	int type;
	unsigned sms;
};
enum { GP_AFFINITY_SMS = 0 }; // CU_EXEC_AFFINITY_TYPE_SM_COUNT

// CUeglFrame
struct gp_egl_frame {
	void *plane[3];
	unsigned width, height, depth, pitch, planes, channels;
	int type, color_format, format;
};
_Static_assert(sizeof(struct gp_egl_frame) == 64, "as cudaEGL.h has it");

// CUarrayMapInfo
struct gp_array_mapping {
	int resource;
	void *array;
	int kind;
	uint64_t where[4];
	int operation, handle_type;
	unsigned long long handle;
	unsigned long long offset;
	unsigned device_mask, flags, reserved[2];
};
_Static_assert(sizeof(struct gp_array_mapping) == 96 && offsetof(struct gp_array_mapping, handle) == 64,
	       "CUarrayMapInfo");

struct gp_resource { // CUdevResource of CUDA 12.4 to 13.0
	int type;
	unsigned char of_driver[92];
	uint32_t sms;
	unsigned char more[44];
};
_Static_assert(sizeof(struct gp_resource) == 144 && offsetof(struct gp_resource, sms) == 96, "CUdevResource");

#define GP_STREAM_LEGACY ((CUstream)0x1)     // CU_STREAM_LEGACY, cuda.h
#define GP_STREAM_PER_THREAD ((CUstream)0x2) // CU_STREAM_PER_THREAD, cuda.h

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_MAP_FAILED = 205,
	CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_UNKNOWN = 999,

	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
	CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
	CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
	CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
	CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133,
	CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,

	CU_FUNCTION_LOADING_STATE_LOADED = 1,
	CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
	CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
	CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
	CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
	CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
	CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH = 11,
	CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT = 12,
	CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH = 13,

	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
	CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
	CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
	CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
	CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
	CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
	CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
	CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
	CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,

	CU_MEMORYTYPE_DEVICE = 2,
	CU_MEMORYTYPE_HOST = 1,
	CU_MEMORYTYPE_UNIFIED = 4,

	CU_MEMHOSTREGISTER_PORTABLE = 1,

	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_CTX_SYNC_MEMOPS = 0x80,
	CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,

	CU_MEMHOSTALLOC_DEVICEMAP = 2,
	CU_MEMHOSTALLOC_PORTABLE = 1,

	CU_STREAM_ATTRIBUTE_PRIORITY = 8,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
	CU_MODULE_EAGER_LOADING = 1,
	CU_STREAM_CAPTURE_STATUS_NONE = 0,
	CU_STREAM_NON_BLOCKING = 1,

	CU_EVENT_BLOCKING_SYNC = 1,
	CU_EVENT_DISABLE_TIMING = 2,

	CU_LAUNCH_ATTRIBUTE_IGNORE = 0,
	CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
	CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT = 7,
	CU_LAUNCH_ATTRIBUTE_PRIORITY = 8,
	CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION = 11,
	CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT = 12,
	CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE = 13,
	CU_LAUNCH_PARAM_BUFFER_POINTER = 1,
	CU_LAUNCH_PARAM_BUFFER_SIZE = 2,

	CU_GRAPH_NODE_TYPE_KERNEL = 0,
	CU_GRAPH_NODE_TYPE_MEMCPY = 1,
	CU_GRAPH_NODE_TYPE_MEMSET = 2,
	CU_GRAPH_NODE_TYPE_HOST = 3,
	CU_GRAPH_NODE_TYPE_GRAPH = 4,
	CU_GRAPH_NODE_TYPE_EMPTY = 5,
	CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
	CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
	CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL = 8,
	CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT = 9,
	CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
	CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
	CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,

	CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4,
	CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY = 8,

	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
	CU_JIT_GLOBAL_SYMBOL_NAMES = 17,
	CU_JIT_GLOBAL_SYMBOL_COUNT = 19,
	CU_JIT_INPUT_PTX = 1,
	CU_JIT_INPUT_FATBINARY = 2,
	CU_JIT_REFERENCED_KERNEL_NAMES = 26,
	CU_JIT_REFERENCED_VARIABLE_COUNT = 29,
	CU_JIT_WALL_TIME = 2,

	CU_LIBRARY_BINARY_IS_PRESERVED = 1,
	CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE = 0,
};

#endif
