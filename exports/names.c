// names.c - guesses from the name of a driver's function, which table.h lacks, whether it puts work on streams.
#include "exports/layer.h"

#include <string.h>

static bool begins_with(const char *name, const char *const *words)
{
	for (; *words; words++)
		if (strncmp(name, *words, strlen(*words)) == 0)
			return true;
	return false;
}

static bool has_one_of(const char *name, const char *const *words)
{
	for (; *words; words++)
		if (strstr(name, *words))
			return true;
	return false;
}

// Functions that make graphs matter only where they add kernels, whose parameters have to be completed.
bool gp_may_submit(const char *name)
{
	static const char *const of_streams[] = {
		"Async",        "Launch",        "Memcpy",      "Memset",      "Cpy",          "Capture",
		"Recapture",    "StreamWait",    "StreamWrite", "StreamBatch", "StreamAttach", "StreamAdd",
		"GraphicsMap",  "GraphicsUnmap", "GLMap",       "GLUnmap",     "Prefetch",     "Discard",
		"RecordEvent",  "EventRecord",   "WaitEvent",   "_ptsz",       "_ptds",        "AcquireFrame",
		"ReleaseFrame", "PresentFrame",  "ReturnFrame", NULL};
	static const char *const of_graphs[] = {"cuGraphAddNode",
						"cuGraphAddKernelNode",
						"cuGraphKernelNodeSetParams",
						"cuGraphExecKernelNodeSetParams",
						"cuGraphNodeSetParams",
						"cuGraphExecNodeSetParams",
						NULL};
	static const char *const harmless[] = {
		"cuStreamGet",      "cuStreamSet",        "cuStreamCopy",     "cuStreamIs",       "cuStreamUpdate",
		"cuDeviceRegister", "cuDeviceUnregister", "cuThreadExchange", "cuGetProcAddress", NULL};
	if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z')
		return false;
	if (begins_with(name, harmless))
		return false;
	if (strncmp(name, "cuGraph", 7) == 0 && strncmp(name, "cuGraphics", 10) != 0)
		return strstr(name, "Launch") || begins_with(name, of_graphs);
	return has_one_of(name, of_streams);
}
