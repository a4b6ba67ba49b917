// A CUDA program, the same whichever way it comes by the driver's functions. Built as a program, and as a library
// that another program opens (run).
#define _GNU_SOURCE
#include "preempt/driver/hooks.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// X(function, name for cuGetProcAddress, parameters)
#define FUNCTIONS \
	X(cuInit, cuInit, (unsigned int)) \
	X(cuDeviceGetCount, cuDeviceGetCount, (int *)) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, (CUdevice)) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext)) \
	X(cuLaunchKernel, cuLaunchKernel, \
	  (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
	X(cuLaunchKernel_ptsz, cuLaunchKernel, \
	  (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
	X(cuLaunchKernelEx, cuLaunchKernelEx, (const void *, CUfunction, void **, void **)) \
	X(cuMemcpyHtoD_v2, cuMemcpyHtoD, (CUdeviceptr, const void *, size_t)) \
	X(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
	X(cuMemFree_v2, cuMemFree, (CUdeviceptr)) \
	X(cuEventRecord, cuEventRecord, (CUevent, CUstream)) \
	X(cuEventSynchronize, cuEventSynchronize, (CUevent)) \
	X(cuStreamSynchronize, cuStreamSynchronize, (CUstream)) \
	X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, (CUstream *, unsigned, int)) \
	X(cuStreamGetPriority, cuStreamGetPriority, (CUstream, int *)) \
	X(cuStreamDestroy_v2, cuStreamDestroy, (CUstream)) \
	X(cuGraphInstantiateWithFlags, cuGraphInstantiate, (CUgraphExec *, CUgraph, unsigned long long)) \
	X(cuGraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream)) \
	X(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec)) \
	X(cuStreamBeginCapture_v2, cuStreamBeginCapture, (CUstream, int)) \
	X(cuStreamEndCapture, cuStreamEndCapture, (CUstream, CUgraph *))

struct api {
#define X(name, symbol, params) CUresult(*name) params;
	FUNCTIONS
#undef X
};

static void use(const struct api *cu)
{
	const CUstream stream = (CUstream)0x5000;
	const CUfunction function = (CUfunction)0xF0;
	const CUevent event = (CUevent)0xE0;
	CUcontext context;
	CUgraphExec instance;
	CUgraph graph;
	int n;
	cu->cuInit(0);
	cu->cuDeviceGetCount(&n);
	cu->cuDevicePrimaryCtxRetain(&context, 0);
	cu->cuDevicePrimaryCtxRetain(&context, 0);
	cu->cuCtxSetCurrent(context);
	cu->cuLaunchKernel(function, 1, 2, 3, 4, 5, 6, 7, NULL, (void **)8, (void **)9);
	cu->cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	struct { int id, pad, value[16]; } cooperative = {2, 0, {1}};
	struct {
		unsigned grid[3], block[3], shared;
		CUstream stream;
		void *attributes;
		unsigned count;
	} config = {{1, 2, 3}, {4, 5, 6}, 7, stream, &cooperative, 1};
	cu->cuLaunchKernelEx(&config, function, NULL, NULL);
	cu->cuMemcpyHtoD_v2(1, "", 1);
	cu->cuMemcpyAsync(1, 2, 3, stream);
	cu->cuEventRecord(event, stream);
	cu->cuEventSynchronize(event);
	cu->cuStreamSynchronize(NULL);
	cu->cuMemFree_v2(1);
	cu->cuStreamBeginCapture_v2(stream, 0);
	cu->cuMemcpyAsync(1, 2, 3, stream);
	cu->cuMemcpyAsync(1, 2, 3, NULL);
	cu->cuMemcpyAsync(1, 2, 3, (CUstream)0x6000);
	cu->cuStreamSynchronize((CUstream)0x6000);
	cu->cuStreamEndCapture(stream, &graph);
	cu->cuGraphInstantiateWithFlags(&instance, (CUgraph)0x61, 0);
	cu->cuGraphLaunch(instance, stream);
	cu->cuGraphExecDestroy(instance);
	CUstream made;
	cu->cuStreamCreateWithPriority(&made, 0, 2);
	cu->cuStreamCreateWithPriority(&made, 0, 7);
	cu->cuStreamGetPriority(made, &n);
	cu->cuStreamDestroy_v2(stream);
	cu->cuDevicePrimaryCtxRelease_v2(0);
	cu->cuDevicePrimaryCtxRelease_v2(0);
	fflush(stdout);
	if (fork() == 0) {
		cu->cuInit(0);
		cu->cuMemcpyAsync(1, 2, 3, stream);
		_exit(0);
	}
	wait(NULL);
}

#ifdef LINKED
#define X(name, symbol, params) extern CUresult name params;
FUNCTIONS
#undef X

void run(void)
{
	use(&(struct api){
#define X(name, symbol, params) name,
		FUNCTIONS
#undef X
	});
}
#endif

typedef CUresult proc_v1(const char *, void **, int, uint64_t);
typedef CUresult proc_v2(const char *, void **, int, uint64_t, int *);

// find looks a function up by one of the ways that programs use.
static void *find(const char *way, void *driver, const char *name, const char *symbol)
{
	void *found = NULL;
	uint64_t flags = strstr(name, "_ptsz") ? 2 : 0; // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, cuda.h
	dlerror();
	if (strcmp(way, "dlsym") == 0)
		found = dlsym(driver, name);
	else if (strcmp(way, "dlvsym") == 0)
		found = dlvsym(driver, name, "ANY");
	else if (strcmp(way, "default") == 0)
		found = dlsym(RTLD_DEFAULT, name);
	else if (strcmp(way, "proc1") == 0)
		((proc_v1 *)dlsym(driver, "cuGetProcAddress"))(symbol, &found, 11030, flags);
	else if (strcmp(way, "proc2") == 0) { // as cudart does
		void *get;
		int status = -1;
		((proc_v2 *)dlsym(driver, "cuGetProcAddress_v2"))("cuGetProcAddress", &get, 12000, 0, NULL);
		((proc_v2 *)get)(symbol, &found, 12000, flags, &status);
		if (status != 0 || ((proc_v2 *)get)(symbol, NULL, 12000, flags, NULL) != 0 ||
		    ((proc_v2 *)get)("cuNone", NULL, 12000, 0, &status) != 500 || status != 1)
			abort();
	}
	if (!found || (strncmp(way, "dl", 2) == 0 && dlerror()))
		abort();
	return found;
}

static void program_handler(int signal) { _exit(signal); }

static double launches_ns(CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream))
{
	enum { COUNT = 20000000 };
	struct timespec begin, end;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int i = 0; i < COUNT; i++)
		copy(1, 2, 3, NULL);
	clock_gettime(CLOCK_MONOTONIC, &end);
	return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / COUNT;
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "linked";
	signal(SIGBUS, program_handler);
	char *priority = getenv("GPREEMPT_PRIORITY");
	if (priority) // as a title written over the environment (setproctitle) leaves it
		memset(priority, ' ', strlen(priority));
#ifdef LINKED
	run();
	return 0;
#endif
	if (strcmp(way, "deepbind") == 0) {
		void *library = dlopen("libprogram.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
		((void (*)(void))dlsym(library, "run"))();
		return 0;
	}
	if (strcmp(way, "next") == 0) {
		puts(((const char *(*)(void))dlsym(RTLD_DEFAULT, "next_name"))());
		return 0;
	}
	if (strcmp(way, "no driver") == 0) {
		puts(dlsym(RTLD_DEFAULT, "cuInit") || !dlerror() ? "found" : "not there");
		return 0;
	}
	if (strcmp(way, "linked nevertheless") == 0) {
		extern CUresult cuInit(unsigned int) __attribute__((weak));
		printf("%d\n", cuInit ? cuInit(0) : -1);
		return 0;
	}
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | (strcmp(way, "default") == 0 ? RTLD_GLOBAL : RTLD_LOCAL));
	if (strcmp(way, "where") == 0) {
		Dl_info info;
		dladdr(dlsym(driver, "cuLaunchKernel"), &info);
		puts(strrchr(info.dli_fname, '/') + 1);
		return 0;
	}
	if (strcmp(way, "missing") == 0) { // intercepted, but not in this driver
		extern CUresult cuLaunchGrid(CUfunction, int, int) __attribute__((weak)); // this program is linked lazily
		printf("%d\n", cuLaunchGrid ? cuLaunchGrid(NULL, 1, 1) : -1);
		printf("%d\n", dlsym(RTLD_DEFAULT, "cuLaunchGrid") == NULL && dlerror() != NULL);
		printf("%d\n", dlsym(driver, "cuLaunchGrid") == NULL && dlerror() != NULL);
		return 0;
	}
	if (strcmp(way, "ioctl") == 0) {
		((CUresult (*)(unsigned))dlsym(driver, "cuInit"))(0);
		printf("%d %d\n", ioctl(-7, _IOWR('F', 0x2A, int), &driver) == 0,
		       ioctl(-7, _IOWR('G', 0x2A, int), NULL) == 0);
		return 0;
	}
	if (strcmp(way, "child") == 0) { // forked before CUDA is initialised, like a server's worker
		if (fork() == 0) {
			sigset_t set;
			CUresult result = ((CUresult (*)(unsigned))dlsym(driver, "cuInit"))(0);
			bool open = sigprocmask(SIG_BLOCK, NULL, &set) == 0 && !sigismember(&set, SIGCHLD);
			printf("%d, SIGCHLD %s\n", result, open ? "open" : "blocked");
			exit(0);
		}
		wait(NULL);
		return 0;
	}
	if (strcmp(way, "results") == 0) {
		((CUresult (*)(unsigned))dlsym(driver, "cuInit"))(0);
		int copied = ((CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream))dlsym(driver, "cuMemcpyAsync"))(
			1, 2, 3, NULL);
		int event = ((CUresult (*)(CUevent))dlsym(driver, "cuEventSynchronize"))((CUevent)0xE0);
		int stream = ((CUresult (*)(CUstream))dlsym(driver, "cuStreamSynchronize"))(NULL);
		printf("%d %d %d\n", copied, event, stream);
		return 0;
	}
	if (strcmp(way, "substitute") == 0) {
		typedef CUresult free_fn(CUdeviceptr), attribute_fn(void *, int, CUdeviceptr);
		extern CUresult cuMemGetInfo_v2(size_t *, size_t *) __attribute__((weak));
		free_fn *early = (free_fn *)dlsym(driver, "cuMemFree_v2");
		((CUresult (*)(unsigned))dlsym(driver, "cuInit"))(0);
		printf("%d\n", early(1));
		printf("%d\n", ((free_fn *)dlsym(driver, "cuMemFree_v2"))(2));
		printf("%d\n", ((attribute_fn *)dlsym(driver, "cuPointerGetAttribute"))(NULL, 3, 4));
		printf("%d\n", cuMemGetInfo_v2 ? cuMemGetInfo_v2(NULL, NULL) : -1);
		fflush(stdout);
		if (fork() == 0)
			exit(early(5));
		wait(NULL);
		return 0;
	}
	if (strcmp(way, "overhead") == 0) {
		((CUresult (*)(unsigned))dlsym(driver, "cuInit"))(0);
		printf("%f\n", launches_ns((CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream))dlsym(
				       driver, "cuMemcpyAsync")));
		return 0;
	}
	use(&(struct api){
#define X(name, symbol, params) (CUresult(*) params) find(way, driver, #name, #symbol),
		FUNCTIONS
#undef X
	});
}
