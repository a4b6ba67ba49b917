// names_test.c - with exports/names.c.
//
// Which functions that table.h lacks may put work on streams, by their names. Ends well or says what is wrong.
#include "exports/layer.h"
#include "test/units/check.h"

int main(void)
{
	static const struct {
		const char *name;
		bool submits;
	} of[] = {
		{"cuMemcpyNewAsync", true},
		{"cuLaunchAnything", true},
		{"cuMemsetD64", true},
		{"cuStreamWaitFlag", true},
		{"cuNewThing_ptsz", true},
		{"cuAnything_ptds", true},
		{"cuGraphicsMapAll", true},
		{"cuEGLStreamProducerPresentFrame_v2", true},
		{"cuMemNew", false},
		{"cuCtxNew", false},
		// Functions that ask, set or register streams put no work on them, with any other word in the name.
		{"cuStreamGetCaptureInfo_v4", false},
		{"cuStreamSetLaunchLimit", false},
		{"cuStreamIsCapturing_ptsz", false},
		{"cuStreamUpdateCaptureDependencies_v3", false},
		{"cuDeviceRegisterAsyncNotification2", false},
		{"cuThreadExchangeStreamCaptureMode2", false},
		{"cuGetProcAddress_v3_ptsz", false},
		// Functions that launch a graph, or give it kernels.
		{"cuGraphLaunchNew", true},
		{"cuGraphAddNode_v3", true},
		{"cuGraphAddKernelNode_v3", true},
		{"cuGraphKernelNodeSetParams_v3", true},
		{"cuGraphExecKernelNodeSetParams_v3", true},
		{"cuGraphNodeSetParams2", true},
		{"cuGraphExecNodeSetParams2", true},
		{"cuGraphAddMemcpyNode2", false},
		{"cuGraphMemsetNodeGetParams2", false},
		// Not the driver's.
		{"", false},
		{"c", false},
		{"cudaLaunchKernel", false},
		{"cu@Launch", false},
		{"cu[Launch", false},
		{"cuALaunch", true},
		{"cuZLaunch", true},
		{"xuLaunch", false},
		{"cxLaunch", false},
	};
	for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
		bool submits = gp_may_submit(of[i].name);
		if (submits != of[i].submits)
			printf("%s: %d\n", of[i].name, submits);
		CHECK(submits == of[i].submits);
	}
	return 0;
}
