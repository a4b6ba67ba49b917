// driver.c - looks up the driver's functions.
#include "preempt/driver/driver.h"

struct gp_driver gp_driver;

const char *gp_driver_resolve(void *(*lookup)(const char *))
{
	const char *missing = NULL;
#define WANTED(field, symbol, parameters) *(void **)&gp_driver.field = lookup(#symbol);
#define BLP_NEEDED(field, symbol, parameters) WANTED(field, symbol, parameters)
#define SWAP_NEEDED(field, symbol, parameters) WANTED(field, symbol, parameters)
#define NEEDED(field, symbol, parameters) \
	WANTED(field, symbol, parameters) \
	if (!gp_driver.field && !missing) \
		missing = #symbol;
#include "preempt/driver/functions.h"
	return missing;
}

const char *gp_driver_lacks_for_blp(void)
{
#define NEEDED(field, symbol, parameters)
#define WANTED(field, symbol, parameters)
#define SWAP_NEEDED(field, symbol, parameters)
#define BLP_NEEDED(field, symbol, parameters) \
	if (!gp_driver.field) \
		return #symbol;
#include "preempt/driver/functions.h"
	return NULL;
}

const char *gp_driver_lacks_for_swap(void)
{
#define NEEDED(field, symbol, parameters)
#define WANTED(field, symbol, parameters)
#define BLP_NEEDED(field, symbol, parameters) \
	if (!gp_driver.field) \
		return #symbol;
#define SWAP_NEEDED(field, symbol, parameters) BLP_NEEDED(field, symbol, parameters)
#include "preempt/driver/functions.h"
	return NULL;
}

bool gp_driver_reads_graphs(void)
{
	return gp_driver.cuGraphGetNodes && gp_driver.cuGraphNodeGetType && gp_driver.cuGraphChildGraphNodeGetGraph &&
	       gp_driver.cuGraphKernelNodeGetAttribute && gp_driver.cuGraphKernelNodeGetParams;
}

const char *gp_driver_kernel_name(CUfunction function)
{
	const char *name = NULL;
	CUlibrary library;
	CUfunction of;
	if (gp_driver.cuKernelGetLibrary && gp_driver.cuKernelGetName && !gp_driver.cuKernelGetLibrary(&library, function))
		return gp_driver.cuKernelGetName(&name, function) ? NULL : name; // a CUkernel
	if (!gp_driver.cuKernelGetLibrary && gp_driver.cuKernelGetFunction && !gp_driver.cuKernelGetFunction(&of, function))
		function = of;
	return gp_driver.cuFuncGetName && !gp_driver.cuFuncGetName(&name, function) ? name : NULL;
}

bool gp_driver_loads_lazily(void)
{
	int mode = CU_MODULE_EAGER_LOADING;
	return gp_driver.cuModuleGetLoadingMode && !gp_driver.cuModuleGetLoadingMode(&mode) &&
	       mode != CU_MODULE_EAGER_LOADING;
}

int gp_driver_version(void)
{
	int version = 0;
	return gp_driver.cuDriverGetVersion && !gp_driver.cuDriverGetVersion(&version) ? version : 0;
}
