// driver.h - calls of the driver.
#ifndef GPREEMPT_DRIVER_H
#define GPREEMPT_DRIVER_H

#include <stdbool.h>

#include "preempt/driver/cuda.h"

extern struct gp_driver {
#define NEEDED(field, symbol, parameters) CUresult(*field) parameters;
#define BLP_NEEDED(field, symbol, parameters) CUresult(*field) parameters;
#define SWAP_NEEDED(field, symbol, parameters) CUresult(*field) parameters;
#define WANTED(field, symbol, parameters) CUresult(*field) parameters;
#include "preempt/driver/functions.h"
} gp_driver;

// Looks all functions up. Returns the symbol of one that is NEEDED and that the driver lacks, or NULL.
const char *gp_driver_resolve(void *(*lookup)(const char *symbol));
// The symbol of one that is BLP_NEEDED and that the driver lacks, or NULL.
const char *gp_driver_lacks_for_blp(void);
const char *gp_driver_lacks_for_swap(void); // BLP_NEEDED or SWAP_NEEDED
// Whether the nodes of a graph can be read.
bool gp_driver_reads_graphs(void);
const char *gp_driver_kernel_name(CUfunction); // of a kernel or function; NULL: the driver does not say
// Whether the driver loads a kernel's code with its first launch (CUDA_MODULE_LOADING).
bool gp_driver_loads_lazily(void);
// cuDriverGetVersion's answer, 13000 for CUDA 13.0; 0: it does not say.
int gp_driver_version(void);

// Returns the driver's error, if it gives one, from the function around it. *call is the name of the driver's function then.
#define GP_TRY(call, function, ...) \
	do { \
		*(call) = #function; \
		CUresult result_ = gp_driver.function(__VA_ARGS__); \
		if (result_) \
			return result_; \
	} while (0)

// The driver allows this thread what a capture elsewhere would forbid. Returns what to put back.
static inline int gp_relax_captures(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}
static inline void gp_unrelax_captures(int mode) { gp_driver.cuThreadExchangeStreamCaptureMode(&mode); }

#endif
