// code_test.c - with preempt/code/*.c preempt/process/facts.c preempt/process/thread.c preempt/process/process.c preempt/process/log_line.c preempt/driver/driver.c.
//
// Loads, and what is known of kernels, over a driver and a rewriter that are made up. Ends well or says what is wrong.
#define _GNU_SOURCE
#include "preempt/code/handles.h"
#include "preempt/code/request.h"
#include "preempt/process/process.h"
#include "test/units/check.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static _Atomic uint32_t armed;
void gp_thread_ends(void) {}

// The driver. A function of module M is M + n, the n-th kernel of it: even ones are "guarded", odd ones "other".
// Libraries are from LIBRARY on, their kernels from KERNEL on, the module of a library is the library + TO_MODULE.
enum { STEP = 1000, LIBRARY = 1 << 20, KERNEL = 1 << 24, TO_MODULE = 1 << 26, CONTEXT = 7, SM = 90 };
static _Atomic int rewritten_parameters = 3; // that the driver sees of an even kernel
static int fail_library, last_set[3];
static _Atomic uintptr_t libraries, unloaded;

static bool is_kernel(CUfunction f) { return (uintptr_t)f >= KERNEL && (uintptr_t)f < TO_MODULE; }

static CUresult get_context(CUcontext *c)
{
	*c = (CUcontext)CONTEXT;
	return 0;
}
static CUresult get_device(CUdevice *d)
{
	*d = 0;
	return 0;
}
static CUresult get_count(int *n)
{
	*n = 1;
	return 0;
}
static CUresult get_attribute(int *value, int attribute, CUdevice d)
{
	(void)d;
	*value = attribute == 75 ? SM / 10 : attribute == 76 ? SM % 10 : 0;
	return 0;
}
static CUresult function_module(CUmodule *m, CUfunction f)
{
	if (is_kernel(f))
		return 400;
	*m = (CUmodule)((uintptr_t)f / STEP * STEP);
	return 0;
}
static CUresult function_name(const char **name, CUfunction f)
{
	*name = (uintptr_t)f % 2 ? "other" : "guarded";
	return 0;
}
static CUresult param_info(CUfunction f, size_t index, size_t *offset, size_t *size)
{
	int count = (uintptr_t)f % 2 ? 2 : rewritten_parameters;
	*offset = index * 8;
	*size = 8;
	return index < (size_t)count ? 0 : 1;
}
static CUresult kernel_library(CUlibrary *l, CUfunction f)
{
	if (!is_kernel(f))
		return 400;
	*l = (CUlibrary)(LIBRARY + ((uintptr_t)f - KERNEL) / STEP);
	return 0;
}
static CUresult library_load(CUlibrary *l, const void *image, const int *o, void *const *v, unsigned n, const int *lo,
			     void *const *lv, unsigned ln)
{
	(void)o, (void)v, (void)n, (void)lo, (void)lv, (void)ln;
	if (fail_library)
		return 200;
	CHECK(!strcmp(image, "image"));
	*l = (CUlibrary)(LIBRARY + libraries++);
	return 0;
}
static CUresult library_unload(CUlibrary l)
{
	unloaded = (uintptr_t)l;
	return 0;
}
static CUresult library_module(CUmodule *m, CUlibrary l)
{
	*m = (CUmodule)((TO_MODULE + (uintptr_t)l) / STEP * STEP);
	return 0;
}
static int loading_state;
static CUresult is_loaded(int *state, CUfunction f)
{
	*state = loading_state;
	return is_kernel(f) ? 400 : 0;
}
static CUresult one_device(int *count) { return *count = 1, 0; }
static bool under_mps;
bool gp_under_mps(CUdevice device) { return under_mps && device == 0; }

static CUresult capture_mode(int *mode)
{
	(void)mode;
	return 0;
}
static CUresult set_parameter(CUfunction f, int offset, void *value, unsigned size)
{
	last_set[0] = offset;
	last_set[1] = (int)size + (int)*(CUdeviceptr *)value;
	return f ? 0 : 1;
}
static CUresult set_size(CUfunction f, unsigned size)
{
	last_set[2] = (int)size;
	return f ? 0 : 1;
}

static void *symbol(const char *name)
{
	static const struct {
		const char *name;
		void *function;
	} functions[] = {
		{"cuDeviceGetCount", get_count},        {"cuFuncGetModule", function_module},
		{"cuFuncGetName", function_name},       {"cuKernelGetName", function_name},
		{"cuFuncGetParamInfo", param_info},     {"cuKernelGetParamInfo", param_info},
		{"cuKernelGetLibrary", kernel_library}, {"cuLibraryLoadData", library_load},
		{"cuLibraryUnload", library_unload},    {"cuLibraryGetModule", library_module},
		{"cuParamSetv", set_parameter},         {"cuParamSetSize", set_size},
	};
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (!strcmp(name, functions[i].name))
			return functions[i].function;
	return NULL;
}

// Contexts are of no concern here.
bool gp_context_pin(struct gp_context *c, CUcontext handle) { return c->handle == handle; }
void gp_context_unpin(struct gp_context *c) { (void)c; }
void gp_forget_loaded(const struct gp_context *c) { (void)c; }

// The rewriter.
static _Atomic int refuse_all;
static atomic_bool stands_still, starved; // once it has a request
static _Atomic uintptr_t late;            // what it answers then

static void *rewriter(void *unused)
{
	for (;;) {
		struct gp_request *r;
		while (!(r = gp_request_take()))
			usleep(50);
		CHECK(r->sm == SM);
		if (refuse_all) {
			strcpy(r->reason, "for the test");
			gp_request_answer(r, GP_FAILED);
			continue;
		}
		if (r->what == GP_PICK) {
			r->picked = (struct gp_picked){
				GP_CUBIN, mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
				4096};
			gp_request_answer(r, GP_DONE);
			continue;
		}
		struct gp_rewritten *w = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		char *text = (char *)w + 1000;
		uint16_t layout[] = {0, 8, 8, 8};
		w->kernels = 2;
		w->bytes = 8192;
		w->image = 4096;
		w->image_bytes = 100;
		strcpy((char *)w + w->image, "image");
		memcpy((char *)w + 500, layout, sizeof layout);
		strcpy(text, "guarded");
		strcpy(text + 10, "other");
		strcpy(text + 20, "reason");
		w->kernel[0] = (struct gp_rewritten_kernel){
			.name = 1000, .layout = 500, .parameters = 2, .hidden = 16, .independent = 1};
		w->kernel[1] = (struct gp_rewritten_kernel){
			.name = 1010, .reason = 1020, .layout = 500, .parameters = 2, .refusal = GP_REFUSED_PEERS};
		r->rewritten = w;
		while (stands_still) {
			late = (uintptr_t)w;
			if (starved)
				gp_helper_gone = 1;
			else
				gp_request_patience_ns = 0;
			usleep(100);
		}
		gp_request_answer(r, GP_DONE);
	}
	return unused;
}

static void load_module(uintptr_t handle)
{
	struct gp_load load = {.image = "original"};
	const char *image = gp_module_loading(&load);
	CHECK(image && !strcmp(image, "image"));
	gp_module_loaded(&load, (CUmodule)handle);
}

static bool loads_as_it_came(void)
{
	struct gp_load load = {.image = "original"};
	return !gp_module_loading(&load);
}

// The rewriter gets a request and does nothing. Its answer comes when no thread waits for it any more.
static void leave_it(bool for_memory)
{
	uint64_t patience = gp_request_patience_ns;
	late = 0;
	starved = for_memory;
	if (for_memory)
		gp_request_patience_ns = UINT64_MAX;
	stands_still = true;
	CHECK(loads_as_it_came() && late);
	CHECK(loads_as_it_came()); // and no thread waits again
	stands_still = false;
	gp_request_patience_ns = patience;
	gp_helper_gone = 0;
	bool thrown_away = false; // seen once: others may map something there, so no look is long after the one before
	for (uint64_t since = gp_now_ns(); !thrown_away && gp_now_ns() - since < 60000000000;) {
		thrown_away = msync((void *)late, 8192, MS_ASYNC) && errno == ENOMEM;
		sched_yield();
	}
	CHECK(thrown_away);
	while (loads_as_it_came())
		usleep(100);
}

static bool guarded(uintptr_t f)
{
	const struct gp_code *code = gp_code_of((CUfunction)f);
	if (code)
		CHECK(code->guarded && code->parameters == 2 && code->hidden == 16 && code->bytes == 24 &&
		      code->parameter[1].offset == 8);
	return code != NULL;
}

static atomic_bool stop;

// Kernels that stay are known at any time, while others come and go.
static void *look(void *arg)
{
	for (uintptr_t i = (uintptr_t)arg; !stop; i++) {
		uintptr_t n = i * 7 % STEP;
		CHECK(guarded(2 * STEP + n) == (n % 2 == 0));
		CHECK(!guarded(4 * STEP + n));
		CHECK(guarded(KERNEL + n) == (n % 2 == 0));
	}
	return NULL;
}

int main(void)
{
	pthread_t thread, lookers[3];
	gp_driver_resolve(symbol);
	gp_driver.cuCtxGetCurrent = get_context;
	gp_driver.cuCtxGetDevice = get_device;
	gp_driver.cuDeviceGetAttribute = get_attribute;
	gp_driver.cuThreadExchangeStreamCaptureMode = capture_mode;
	gp_code_start(&armed);
	for (int i = 0; i < 2; i++)
		pthread_create(&thread, NULL, rewriter, NULL);

	// Rewriting is not wanted: nothing happens.
	struct gp_load load = {.image = "original"};
	CHECK(!gp_module_loading(&load) && !armed && !guarded(2 * STEP));
	gp_blp_set(GP_BLP_UNDER_MPS);
	CHECK(!gp_blp_wanted());
	// Nor once a function is unknown, though that cannot be known before the driver's cuInit.
	__typeof__(gp_driver) before = gp_driver;
	gp_driver.cuDeviceGetCount = NULL;
	gp_blp_set(GP_BLP_UNDER_MPS);
	CHECK(!gp_blp_unwant());
	gp_driver.cuDeviceGetCount = one_device;
	under_mps = true;
	CHECK(!gp_blp_wanted());
	// Without a context that the driver has initialised RM may yet show that the process has a TSG of its own. With one it is settled.
	gp_blp_set(GP_BLP_UNDER_MPS);
	CHECK(gp_blp_wanted());
	gp_context_places = 1;
	CHECK(gp_blp_wanted());
	gp_context[0].prepared = 1;
	under_mps = false;
	CHECK(!gp_blp_wanted());
	under_mps = true;
	CHECK(!gp_blp_wanted());
	gp_blp_set(GP_BLP_UNDER_MPS);
	CHECK(gp_blp_wanted());
	under_mps = false;
	CHECK(gp_blp_wanted() && gp_blp_unwant() && !gp_blp_wanted());
	gp_driver = before;
	gp_blp_set(GP_BLP_ON);
	CHECK(gp_blp_wanted());

	// A rewriter that does not answer in time, or waits for memory.
	leave_it(false);
	leave_it(true);
	memset((void *)&gp_kernels, 0, sizeof gp_kernels);

	// Modules.
	load_module(2 * STEP);
	CHECK(armed == 2 && guarded(2 * STEP) && !guarded(2 * STEP + 1) && !guarded(4 * STEP));
	CHECK(gp_code_of((CUfunction)(2ul * STEP)) == gp_code_of((CUfunction)(2ul * STEP + 2)));
	CHECK(gp_code_parameter_hidden((CUfunction)(2ul * STEP), 2) &&
	      !gp_code_parameter_hidden((CUfunction)(2ul * STEP), 1));
	CHECK(gp_kernels.seen == 2 && gp_kernels.guarded == 1 && gp_kernels.refused[GP_REFUSED_PEERS] == 1 &&
	      gp_kernels.images == 1);
	uint32_t generation = gp_code_generation;
	CHECK(!gp_code_of((CUfunction)(2ul * STEP))->whole && gp_code_of((CUfunction)(2ul * STEP))->independent);
	gp_code_keep_whole((CUfunction)(2ul * STEP));
	CHECK(gp_code_generation != generation && gp_code_of((CUfunction)(2ul * STEP))->whole && guarded(2 * STEP));
	gp_code_let_pass((CUfunction)(2ul * STEP));
	CHECK(last_set[0] == 16 && last_set[1] == 8 && last_set[2] == 24);

	// A handle means another module after its end.
	load_module(6 * STEP);
	CHECK(guarded(6 * STEP));
	gp_module_unloading((CUmodule)(6ul * STEP));
	CHECK(!guarded(6 * STEP));
	load_module(6 * STEP);
	CHECK(guarded(6 * STEP));
	gp_code_context_destroying((CUcontext)CONTEXT); // perhaps: others may hold the context
	CHECK(guarded(6 * STEP) && guarded(2 * STEP));
	load_module(6 * STEP);
	CHECK(guarded(6 * STEP));

	// In which contexts its code is loaded, until handles become unknown.
	CUfunction f = (CUfunction)(6ul * STEP);
	generation = gp_code_generation;
	CHECK(!gp_code_is_loaded(f, 1));
	gp_handle_add_loaded(f, 1, generation);
	gp_handle_add_loaded(f, 1ull << 63, generation);
	gp_handle_add_loaded((CUfunction)(7ul * STEP), 1, generation); // nobody asked for it yet
	CHECK(gp_code_is_loaded(f, 1) && gp_code_is_loaded(f, 1ull << 63) && !gp_code_is_loaded(f, 2));
	CHECK(!gp_code_is_loaded((CUfunction)(7ul * STEP), 1));
	gp_code_forget();
	CHECK(!gp_code_is_loaded(f, 1) && guarded(6 * STEP) && !gp_code_is_loaded(f, 1));
	gp_handle_add_loaded(f, 1, generation); // learnt of what had the handle before
	CHECK(!gp_code_is_loaded(f, 1));

	gp_driver.cuFuncIsLoaded = is_loaded; // of a handle that was not launched
	CHECK(!gp_code_learn_loaded(f, 1) && !gp_code_is_loaded(f, 1));
	loading_state = CU_FUNCTION_LOADING_STATE_LOADED;
	CHECK(!gp_code_learn_loaded((CUfunction)(uintptr_t)KERNEL, 1));
	CHECK(gp_code_learn_loaded(f, 1) && gp_code_is_loaded(f, 1) && !gp_code_is_loaded(f, 2));
	gp_driver.cuFuncIsLoaded = NULL;
	CHECK(!gp_code_learn_loaded(f, 2));

	// One thread takes a module to unload it.
	CHECK(gp_module_is_known((CUmodule)f, (CUcontext)CONTEXT) && !gp_module_is_known((CUmodule)f, (CUcontext)1));
	CHECK(!gp_module_take((CUmodule)f, (CUcontext)1) && gp_module_take((CUmodule)f, (CUcontext)CONTEXT));
	CHECK(!gp_module_take((CUmodule)f, (CUcontext)CONTEXT) && !guarded(6 * STEP));

	// Nor are many forgotten because others hold it.
	enum { MANY = 5000 };
	const size_t first = 4ul * TO_MODULE / STEP * STEP;
	for (size_t i = 0; i < MANY; i++)
		load_module(first + i * STEP);
	for (int i = 0; i < 3; i++) {
		gp_code_context_destroying((CUcontext)CONTEXT);
		CHECK(guarded(first));
	}
	CHECK(guarded(first + (MANY - 1) * STEP) && guarded(2 * STEP));
	for (size_t i = 0; i < MANY; i++)
		gp_module_unloading((CUmodule)(first + i * STEP));

	// The driver sees something else than was rewritten.
	rewritten_parameters = 2;
	load_module(8 * STEP);
	CHECK(!guarded(8 * STEP));
	rewritten_parameters = 4;
	gp_code_forget();
	CHECK(!guarded(8 * STEP));
	rewritten_parameters = 3;
	gp_code_forget();
	CHECK(guarded(8 * STEP));

	// A module whose load was not seen, and one that was loaded as it came.
	gp_module_function((CUmodule)(8ul * STEP));
	CHECK(gp_kernels.refused[GP_REFUSED_RUNTIME] == 0);
	uint64_t seen = gp_kernels.seen;
	gp_module_function((CUmodule)(10ul * STEP));
	CHECK(gp_kernels.refused[GP_REFUSED_RUNTIME] == 1 && gp_kernels.seen == seen + 1);
	load.token = NULL;
	gp_module_loaded(&load, (CUmodule)(10ul * STEP));
	gp_module_function((CUmodule)(10ul * STEP));
	CHECK(gp_kernels.refused[GP_REFUSED_RUNTIME] == 1 && !guarded(10 * STEP));
	load_module(10 * STEP); // the handle means another one
	CHECK(guarded(10 * STEP));
	gp_module_loaded(&load, (CUmodule)(10ul * STEP));
	gp_code_forget();
	CHECK(!guarded(10 * STEP));

	// The driver does not load it, or nothing can be rewritten.
	load.token = NULL;
	CHECK(gp_module_loading(&load));
	gp_module_loaded(&load, NULL);
	CHECK(gp_kernels.refused[GP_REFUSED_IMAGE] == 1);
	refuse_all = 1;
	CHECK(!gp_module_loading(&load) && gp_kernels.refused[GP_REFUSED_IMAGE] == 2);
	refuse_all = 0;

	// Libraries: the second takes the place of the first, which stands for it.
	CUlibrary original = (CUlibrary)5, second;
	load = (struct gp_load){
		.image = "original", .library_options = 1, .library_option = (int[]){1}, .library_value = (void *[]){NULL}};
	gp_library_loaded(&load, original);
	CHECK(libraries == 0);
	second = gp_library_used(original);
	CHECK(second == (CUlibrary)LIBRARY && libraries == 1 && gp_library_used(original) == second && libraries == 1);
	CHECK(gp_library_of(second) == original && gp_library_of((CUlibrary)6) == (CUlibrary)6);
	CHECK(gp_library_used((CUlibrary)6) == (CUlibrary)6);
	CHECK(guarded(KERNEL) && !guarded(KERNEL + 1) && !guarded(KERNEL + STEP));
	CUmodule module;
	library_module(&module, second); // nobody asked for it yet
	CHECK(guarded((uintptr_t)module) && !guarded((uintptr_t)module + 1));
	fail_library = 1;
	gp_library_loaded(&load, (CUlibrary)9);
	CHECK(gp_library_used((CUlibrary)9) == (CUlibrary)9);
	fail_library = 0;
	CHECK(gp_library_used((CUlibrary)9) == (CUlibrary)9); // and stays so
	gp_library_unloading((CUlibrary)9);
	gp_library_loaded(&load, (CUlibrary)9);
	CHECK(gp_library_used((CUlibrary)9) == (CUlibrary)(LIBRARY + 1ul));
	gp_library_unloading((CUlibrary)9);
	CHECK(unloaded == LIBRARY + 1 && gp_library_of((CUlibrary)(LIBRARY + 1ul)) == (CUlibrary)(LIBRARY + 1ul));
	CHECK(!guarded(KERNEL + STEP));
	struct gp_substitute substitute;
	gp_library_loaded(&load, (CUlibrary)9);
	second = gp_library_used((CUlibrary)9);
	CHECK(gp_library_is_known((CUlibrary)9) && gp_library_take((CUlibrary)9, &substitute));
	CHECK(substitute.library == second && !gp_library_take((CUlibrary)9, &substitute) && !substitute.library);
	CHECK(!gp_library_is_known((CUlibrary)9) && gp_library_used((CUlibrary)9) == (CUlibrary)9);

	// More handles than there is room for, while others are looked up and modules come and go.
	for (uintptr_t i = 0; i < 3; i++)
		pthread_create(&lookers[i], NULL, look, (void *)(i * 100));
	for (uintptr_t i = 0; i < 100; i++) {
		uintptr_t m = (100 + i % 3) * STEP;
		load_module(m);
		for (uintptr_t n = 0; n < STEP; n += 3)
			CHECK(guarded(m + n) == (n % 2 == 0));
		gp_module_unloading((CUmodule)m);
		CHECK(!guarded(m));
	}
	for (uintptr_t m = 300; m < 340; m++)
		for (uintptr_t n = 0; n < STEP; n++)
			CHECK(!guarded(m * STEP + n));
	stop = true;
	for (int i = 0; i < 3; i++)
		pthread_join(lookers[i], NULL);
	// It ends, once.
	CHECK(gp_blp_unwant() && !gp_blp_unwant() && !gp_blp_wanted());
	return 0;
}
