// Loads code in every way there is and prints what a program sees of it; lines that begin with "driver" say what the
// driver itself sees. Waits for the end of its input before it ends.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
typedef unsigned long long CUdeviceptr;

// The driver's own function, past whatever stands in front of it: from its symbol table.
static void *own(const char *name)
{
	struct link_map *map;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	if (dlinfo(dlopen("libcuda.so.1", RTLD_NOW), RTLD_DI_LINKMAP, &map))
		abort();
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag; d++) {
		if (d->d_tag == DT_SYMTAB)
			symbols = (const void *)d->d_un.d_ptr;
		if (d->d_tag == DT_STRTAB)
			names = (const char *)d->d_un.d_ptr;
	}
	for (const ElfW(Sym) *s = symbols + 1; (const char *)s < names; s++) // the names stand behind the symbols
		if (strcmp(names + s->st_name, name) == 0)
			return (void *)(map->l_addr + s->st_value);
	abort();
}

#define CUDA(name, ...) static int (*name)(__VA_ARGS__)
CUDA(cuInit, unsigned);
CUDA(cuDevicePrimaryCtxRetain, handle *, int);
CUDA(cuCtxSetCurrent, handle);
CUDA(cuModuleLoad, handle *, const char *);
CUDA(cuModuleLoadData, handle *, const void *);
CUDA(cuModuleLoadDataEx, handle *, const void *, unsigned, int *, void **);
CUDA(cuModuleLoadFatBinary, handle *, const void *);
CUDA(cuModuleUnload, handle);
CUDA(cuModuleGetFunction, handle *, handle, const char *);
CUDA(cuModuleGetGlobal_v2, CUdeviceptr *, size_t *, handle, const char *);
CUDA(cuLibraryLoadData, handle *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUDA(cuLibraryLoadFromFile, handle *, const char *, int *, void **, unsigned, int *, void **, unsigned);
CUDA(cuLibraryUnload, handle);
CUDA(cuLibraryGetKernel, handle *, handle, const char *);
CUDA(cuLibraryGetKernelCount, unsigned *, handle);
CUDA(cuLibraryEnumerateKernels, handle *, unsigned, handle);
CUDA(cuLibraryGetModule, handle *, handle);
CUDA(cuLibraryGetGlobal, CUdeviceptr *, size_t *, handle, const char *);
CUDA(cuKernelGetFunction, handle *, handle);
CUDA(cuKernelGetLibrary, handle *, handle);
CUDA(cuKernelGetName, const char **, handle);
CUDA(cuKernelGetParamInfo, handle, size_t, size_t *, size_t *);
CUDA(cuFuncGetParamInfo, handle, size_t, size_t *, size_t *);
CUDA(cuFuncGetModule, handle *, handle);
CUDA(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t);
CUDA(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t);

static int (*own_param_info)(handle, size_t, size_t *, size_t *);
static int (*own_get_library)(handle *, handle);
static int (*own_count)(unsigned *, handle);

static void find(void)
{
	handle cuda = dlopen("libcuda.so.1", RTLD_NOW);
#define FIND(name) (name = (void *)dlsym(cuda, #name))
	FIND(cuInit), FIND(cuDevicePrimaryCtxRetain), FIND(cuCtxSetCurrent), FIND(cuModuleLoad), FIND(cuModuleLoadData);
	FIND(cuModuleLoadDataEx), FIND(cuModuleLoadFatBinary), FIND(cuModuleUnload), FIND(cuModuleGetFunction);
	FIND(cuModuleGetGlobal_v2), FIND(cuLibraryLoadData), FIND(cuLibraryLoadFromFile), FIND(cuLibraryUnload);
	FIND(cuLibraryGetKernel), FIND(cuLibraryGetKernelCount), FIND(cuLibraryEnumerateKernels), FIND(cuLibraryGetModule);
	FIND(cuLibraryGetGlobal), FIND(cuKernelGetFunction), FIND(cuKernelGetLibrary), FIND(cuKernelGetName);
	FIND(cuKernelGetParamInfo), FIND(cuFuncGetParamInfo), FIND(cuFuncGetModule), FIND(cuMemcpyHtoD_v2),
		FIND(cuMemcpyDtoH_v2);
	own_param_info = (void *)own("cuFuncGetParamInfo");
	own_get_library = (void *)own("cuKernelGetLibrary");
	own_count = (void *)own("cuLibraryGetKernelCount");
}

static void check(const char *what, int result)
{
	if (result)
		printf("%s: error %d\n", what, result);
}
#define CHECK(call, ...) check(#call, call(__VA_ARGS__))

static void parameters(const char *what, int (*info)(handle, size_t, size_t *, size_t *), handle function)
{
	size_t offset, size;
	printf("%s", what);
	for (size_t i = 0; info(function, i, &offset, &size) == 0; i++)
		printf(" %zu+%zu", offset, size);
	puts("");
}

static const char kernel_name[] = "sim_chain";
static handle context;

static void use_module(handle module)
{
	handle function = NULL;
	CHECK(cuModuleGetFunction, &function, module, kernel_name);
	parameters("function", cuFuncGetParamInfo, function);
	parameters("driver", own_param_info, function);
	CHECK(cuModuleUnload, module);
}

static void use_library(handle library)
{
	unsigned count = 0, left = 0;
	handle kernel = NULL, of = NULL, function = NULL, module = NULL, module_of = NULL, kernels[8], other = NULL;
	const char *name = "";
	CUdeviceptr variable = 0, again = 0;
	size_t bytes = 0;
	uint64_t written = 0x1234567890abcdef, read = 0;

#ifdef NO_CONTEXT
	CHECK(cuCtxSetCurrent, NULL);
#endif
	CHECK(cuLibraryGetKernelCount, &count, library);
	CHECK(cuLibraryGetKernel, &kernel, library, kernel_name);
	CHECK(cuCtxSetCurrent, context);
	CHECK(cuKernelGetName, &name, kernel);
	CHECK(cuKernelGetLibrary, &of, kernel);
	CHECK(cuKernelGetFunction, &function, kernel);
	CHECK(cuFuncGetModule, &module_of, function);
	CHECK(cuLibraryGetModule, &module, library);
	bool enumerated = false;
	CHECK(cuLibraryEnumerateKernels, kernels, count < 8 ? count : 8, library);
	for (unsigned i = 0; i < count && i < 8; i++)
		enumerated |= kernels[i] == kernel;
	printf("%u kernels, %s enumerated %d, library %d, module %d\n", count, name, enumerated, of == library,
	       module == module_of);
	parameters("kernel", cuKernelGetParamInfo, kernel);
	parameters("function", cuFuncGetParamInfo, function);
	parameters("driver", own_param_info, kernel);
	CHECK(cuLibraryGetGlobal, &variable, &bytes, library, "sim_counter");
	CHECK(cuModuleGetGlobal_v2, &again, &bytes, module, "sim_counter");
	CHECK(cuMemcpyHtoD_v2, variable, &written, sizeof written);
	CHECK(cuMemcpyDtoH_v2, &read, again, sizeof read);
	printf("variable %d, of %zu bytes, one %d\n", variable != 0, bytes, variable == again && read == written);
	own_get_library(&other, kernel);
	printf("driver another library %d\n", other != library);
	CHECK(cuLibraryUnload, library);
	printf("driver unloaded %d %d\n", own_count(&left, library) != 0, own_count(&left, other) != 0);
}

static char *contents(const char *path, size_t *bytes)
{
	FILE *f = fopen(path, "re");
	char *data = calloc(1, 1 << 20);
	if (!f || !data)
		abort();
	*bytes = fread(data, 1, (1 << 20) - 1, f);
	fclose(f);
	return data;
}

#ifdef BY_TABLE // as CUDA runtimes before 12.0
static void load_by_table(handle *module, const void *wrapper)
{
	typedef int load(handle *, const void *, int *, void **, unsigned);
	static const unsigned char table_name[] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
						   0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
	handle cuda = dlopen("libcuda.so.1", RTLD_NOW);
	int (*get_table)(const void *const **, const void *) = (void *)dlsym(cuda, "cuGetExportTable");
	const void *const *table = NULL;
	CHECK(get_table, &table, table_name);
	load *load_wrapped = (load *)table[6];
	CHECK(load_wrapped, module, wrapper, NULL, NULL, 0);
}
#endif

int main(int argc, char **argv)
{
	enum {
		CU_JIT_ERROR_LOG_BUFFER = 5,
		CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
		CU_LIBRARY_BINARY_IS_PRESERVED = 1
	};
	handle module = NULL, library = NULL;
	char log[64], copy[] = "copyXXXXXX";
	int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES},
	    preserved = CU_LIBRARY_BINARY_IS_PRESERVED;
	void *values[] = {log, (void *)sizeof log}, *yes = (void *)1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	find();
	CHECK(cuInit, 0);
	CHECK(cuDevicePrimaryCtxRetain, &context, 0);
	CHECK(cuCtxSetCurrent, context);
	for (int i = 1; i < argc; i++) {
		size_t bytes;
		char *data = contents(argv[i], &bytes);
		const struct {
			int magic, version;
			const void *data;
			void *more;
		} wrapper = {0x466243B1, 1, data, NULL};

		puts("module of data");
		CHECK(cuModuleLoadData, &module, data);
		use_module(module);
		puts("module of data with options");
		CHECK(cuModuleLoadDataEx, &module, data, 2, options, values);
		use_module(module);
		puts("module of a file");
		CHECK(cuModuleLoad, &module, argv[i]);
		use_module(module);
		if (memcmp(data, "\x50\xed\x55\xba", 4) == 0) {
			puts("module of a wrapped fatbin");
			CHECK(cuModuleLoadFatBinary, &module, &wrapper);
			use_module(module);
#ifdef BY_TABLE
			puts("module of a runtime's fatbin");
			load_by_table(&module, &wrapper);
			use_module(module);
#endif
		}

		puts("library of data that stays");
		CHECK(cuLibraryLoadData, &library, data, NULL, NULL, 0, &preserved, &yes, 1);
		use_library(library);
		puts("library of a file that goes");
		FILE *f = fdopen(mkstemp(copy), "w");
		fwrite(data, 1, bytes, f);
		fclose(f);
		CHECK(cuLibraryLoadFromFile, &library, copy, NULL, NULL, 0, NULL, NULL, 0);
		unlink(copy);
		strcpy(copy, "copyXXXXXX");
		use_library(library);
		puts("library of data that goes");
		CHECK(cuLibraryLoadData, &library, data, options, values, 2, NULL, NULL, 0);
		memset(data, 0xa5, bytes);
		free(data);
		use_library(library);
	}
	puts("done");
	while (getchar() != EOF)
		;
	return 0;
}
