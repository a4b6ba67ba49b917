// mps_test.c - with preempt/gpu/mps.c preempt/objects/objects.c preempt/driver/environment.c.
//
// Under an MPS server streams have the priority of their process's level, and programs hear what they asked for, each in its context.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "preempt/objects/objects.h"
#include "test/units/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct gp_settings gp_settings;
struct gp_gpu gp_gpu[GP_GPUS];
struct gp_context gp_context[GP_CONTEXTS];
static struct gp_context *current = gp_context;
struct gp_context *gp_current_context(void) { return current; }

static int least_priority = 0, greatest_priority = -5;
static bool refuses;
static CUresult range(int *least, int *greatest)
{
	*least = least_priority;
	*greatest = greatest_priority;
	return refuses ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
static CUresult get_current(CUcontext *context)
{
	*context = current ? current->handle : NULL;
	return refuses ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
struct gp_driver gp_driver = {.cuCtxGetStreamPriorityRange = range, .cuCtxGetCurrent = get_current};

static void test_levels(void)
{
	int priority = 77;
	gp_settings.mps = 1;
	gp_gpu[0].mps = 1;
	for (uint32_t level = 0; level < GP_LEVELS; level++) {
		int before = priority;
		gp_settings.level = level;
		CHECK(gp_stream_creating(&priority));
		CHECK(priority <= 0 && priority >= -5 && (!level || priority >= before));
		CHECK(level || priority == -5);
	}
	CHECK(priority == 0);
	gp_settings.level = 3;
	priority = 77;
	gp_gpu[0].mps = 0;
	CHECK(!gp_stream_creating(&priority));
	gp_gpu[0].mps = 1;
	gp_settings.mps = 0;
	CHECK(!gp_stream_creating(&priority));
	gp_settings.mps = 1;
	refuses = true;
	CHECK(!gp_stream_creating(&priority));
	refuses = false;
	current = NULL;
	CHECK(!gp_stream_creating(&priority));
	current = gp_context;
	greatest_priority = 0; // a GPU without priorities
	CHECK(!gp_stream_creating(&priority) && priority == 77);
	greatest_priority = -5;
	gp_driver.cuCtxGetStreamPriorityRange = NULL;
	CHECK(!gp_stream_creating(&priority) && priority == 77);
	gp_driver.cuCtxGetStreamPriorityRange = range;
}

static int heard(int context, uintptr_t stream)
{
	int priority = 99; // what is in force
	current = &gp_context[context];
	gp_stream_priority((CUstream)stream, &priority);
	return priority;
}

static void make(int context, uintptr_t stream, int asked)
{
	current = &gp_context[context];
	gp_stream_created((CUstream)stream, asked);
}

static void test_asked(void)
{
	enum { STREAMS = 200 };
	CHECK(heard(0, 1) == 99);
	make(0, 1, -2);
	make(1, 1, -3); // another context's, with the same address
	CHECK(heard(0, 1) == -2 && heard(1, 1) == -3 && heard(0, 2) == 99);
	make(0, 1, 50); // as the driver: no more than there is
	CHECK(heard(0, 1) == 0);
	make(0, 1, -50);
	CHECK(heard(0, 1) == -5 && heard(1, 1) == -3);
	refuses = true;
	make(0, 1, -1);
	CHECK(heard(0, 1) == 99);
	refuses = false;
	CHECK(heard(0, 1) == -5);
	current = NULL;
	gp_stream_created((CUstream)1, -1);
	for (uintptr_t i = 2; i < STREAMS; i++) {
		make(0, i, -(int)(i % 6));
		make(1, i, -(int)((i + 1) % 6));
	}
	for (uintptr_t i = 2; i < STREAMS; i++)
		CHECK(heard(0, i) == -(int)(i % 6) && heard(1, i) == -(int)((i + 1) % 6));
	current = &gp_context[0];
	gp_stream_has_priority((CUstream)3); // the program sets another one
	CHECK(heard(0, 3) == 99 && heard(1, 3) == -4);
	make(0, 3, -3);
	gp_object_end(GP_STREAM, NULL);
	for (uintptr_t i = 2; i < STREAMS; i += 2)
		gp_object_end(GP_STREAM, (CUstream)i);
	for (uintptr_t i = 2; i < STREAMS; i++)
		CHECK(heard(0, i) == (i % 2 ? -(int)(i % 6) : 99));
	gp_objects_set_apart(gp_context[0].handle);
	gp_objects_destroyed(gp_context[0].handle, true);
	for (uintptr_t i = 2; i < STREAMS; i++)
		CHECK(heard(0, i) == 99 && heard(1, i) == (i % 2 ? -(int)((i + 1) % 6) : 99));
	gp_objects_set_apart(gp_context[1].handle);
	gp_objects_destroyed(gp_context[1].handle, true);
	CHECK(heard(1, 3) == 99);
}

// Stand-ins for the folders of daemons' sockets, which this machine may have too.
static bool runs_as_root, runs_as_user;
int access(const char *path, int mode)
{
	if (!strcmp(path, "/run/nvidia-mps/control"))
		return runs_as_root ? 0 : -1;
	if (!strcmp(path, "/tmp/nvidia-mps/control"))
		return runs_as_user ? 0 : -1;
	return (int)syscall(SYS_access, path, mode);
}

static void test_directories(void)
{
	for (int i = 0; i < 4; i++) {
		runs_as_root = i & 1;
		runs_as_user = i & 2;
		unsetenv("CUDA_MPS_PIPE_DIRECTORY");
		CHECK(gp_mps_server_runs() == (i != 0));
		setenv("CUDA_MPS_PIPE_DIRECTORY", "", 1);
		CHECK(gp_mps_server_runs() == (i != 0));
		setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/none of them", 1); // no other one counts
		CHECK(!gp_mps_server_runs());
		setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/nvidia-mps", 1);
		CHECK(gp_mps_server_runs() == runs_as_root);
	}
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

static const char *const variables[] = {"_UDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_CLIENT_PRIORITY",
					"_PREEMPT_SET_MPS_PRIORITY", "GPREEMPT_SET_MPS_PRIORITY"};

static bool has(const char *name, const char *value)
{
	const char *is = getenv(name);
	return value ? is && !strcmp(is, value) : !is;
}

// Each case is a program that starts with an environment, this one again: what the library does when it is loaded is done then.
static int start(int which)
{
	bool best_effort = which != 2 && which != 6, lowers = which == 0 || which == 1 || which == 5;
	CHECK(gp_mps_server_runs() == (which != 4));
	CHECK(has("_UDA_MPS_CLIENT_PRIORITY", best_effort ? "1" : NULL));
	if (which == 3)
		CHECK(has("CUDA_MPS_CLIENT_PRIORITY", "0"));
	else
		CHECK(has("CUDA_MPS_CLIENT_PRIORITY", NULL));
	CHECK(has("GPREEMPT_SET_MPS_PRIORITY", NULL));
	gp_mps_lower_client();
	CHECK(has("CUDA_MPS_CLIENT_PRIORITY", lowers ? "1" : which == 3 ? "0" : NULL));
	CHECK(has("GPREEMPT_SET_MPS_PRIORITY", lowers ? "1" : NULL));
	return 0;
}

static void test_environment(const char *program)
{
	static const char *const role[] = {"be", "7", "lc", "be", "be", "be", "lc"};
	char folder[] = "/tmp/mps_test.XXXXXX", path[64], command[256], number[8];
	CHECK(mkdtemp(folder));
	snprintf(path, sizeof path, "%s/control", folder);
	for (int i = 0; i < (int)(sizeof role / sizeof *role); i++) {
		FILE *f = i == 4 ? NULL : fopen(path, "w");
		CHECK(i == 4 || (f && !fclose(f)));
		for (size_t v = 0; v < sizeof variables / sizeof *variables; v++)
			unsetenv(variables[v]);
		setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
		setenv("GPREEMPT_PRIORITY", role[i], 1);
		if (i == 3) // the program's own choice
			setenv("CUDA_MPS_CLIENT_PRIORITY", "0", 1);
		if (i >= 5) { // the process that starts it had set it
			setenv("CUDA_MPS_CLIENT_PRIORITY", "1", 1);
			setenv("GPREEMPT_SET_MPS_PRIORITY", "1", 1);
		}
		snprintf(number, sizeof number, "%d", i);
		snprintf(command, sizeof command, "%s %s", program, number);
		int status = system(command);
		if (i != 4)
			unlink(path);
		CHECK(!status);
	}
	CHECK(!rmdir(folder));
}

int main(int count, char **arguments)
{
	if (count > 1)
		return start(atoi(arguments[1]));
	for (int i = 0; i < 2; i++) {
		gp_context[i].handle = (CUcontext)&gp_context[i];
		gp_context[i].gpu = gp_gpu;
	}
	test_levels();
	test_asked();
	test_directories();
	test_environment(arguments[0]);
	return 0;
}
