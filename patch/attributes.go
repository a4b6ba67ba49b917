package patch

import (
	"errors"
	"fmt"
)

// Formats of an attribute of .nv.info, as cuobjdump names them.
const (
	eifmtNVAL = 1 // no value
	eifmtBVAL = 2 // one byte
	eifmtHVAL = 3 // two bytes
	eifmtSVAL = 4 // a size in two bytes, and that many bytes
)

// Attributes of .nv.info, as cuobjdump names them.
const (
	eiattrCTAIDZUsed       = 0x04
	eiattrParamCbank       = 0x0a
	eiattrKparamInfo       = 0x17
	eiattrCbankParamSize   = 0x19
	eiattrMaxregCount      = 0x1b
	eiattrExitInstrOffsets = 0x1c
	eiattrCRSStackSize     = 0x1e
	eiattrRegcount         = 0x2f
	eiattrCUDAAPIVersion   = 0x37
	eiattrKparamInfoV2     = 0x45
	eiattrNumBarriers      = 0x4c
)

// handling is what has to be done to an attribute when a prologue is added.
type handling int

const (
	unknown     handling = iota
	keep                 // Holds no offset into the code.
	number               // Holds a number, in the attribute itself.
	offsets              // A list of 32-bit offsets into the code.
	targets              // EIATTR_INDIRECT_BRANCH_TARGETS.
	mbarrier             // EIATTR_MBARRIER_INSTR_OFFSETS.
	pairs                // {offset, register or mask}.
	annotations          // EIATTR_ANNOTATIONS.
	refuse               // Holds offsets, or properties of instructions, in an unknown form.
)

// attributeRules lists the attributes with which a kernel can be rewritten, and those with which it cannot, by name. A kernel with any
// other attribute is refused: its meaning is unknown.
var attributeRules = map[byte]struct {
	name string
	handling
}{
	0x01: {"EIATTR_PAD", keep},
	0x02: {"EIATTR_IMAGE_SLOT", keep},
	0x03: {"EIATTR_JUMPTABLE_RELOCS", refuse},
	0x04: {"EIATTR_CTAIDZ_USED", keep},
	0x05: {"EIATTR_MAX_THREADS", keep},
	0x06: {"EIATTR_IMAGE_OFFSET", keep},
	0x07: {"EIATTR_IMAGE_SIZE", keep},
	0x08: {"EIATTR_TEXTURE_NORMALIZED", keep},
	0x09: {"EIATTR_SAMPLER_INIT", keep},
	0x0a: {"EIATTR_PARAM_CBANK", keep},
	0x0c: {"EIATTR_CBANK_PARAM_OFFSETS", keep},
	0x0e: {"EIATTR_TEXID_SAMPID_MAP", keep},
	0x0f: {"EIATTR_EXTERNS", keep},
	0x10: {"EIATTR_REQNTID", keep},
	0x11: {"EIATTR_FRAME_SIZE", keep},
	0x12: {"EIATTR_MIN_STACK_SIZE", keep},
	0x13: {"EIATTR_SAMPLER_FORCE_UNNORMALIZED", keep},
	0x14: {"EIATTR_BINDLESS_IMAGE_OFFSETS", keep}, // offsets into the parameters
	0x15: {"EIATTR_BINDLESS_TEXTURE_BANK", keep},
	0x16: {"EIATTR_BINDLESS_SURFACE_BANK", keep},
	0x17: {"EIATTR_KPARAM_INFO", keep},
	0x19: {"EIATTR_CBANK_PARAM_SIZE", keep},
	0x1a: {"EIATTR_QUERY_NUMATTRIB", keep},
	0x1b: {"EIATTR_MAXREG_COUNT", keep},
	0x1c: {"EIATTR_EXIT_INSTR_OFFSETS", offsets},
	0x1d: {"EIATTR_S2RCTAID_INSTR_OFFSETS", offsets},
	0x1e: {"EIATTR_CRS_STACK_SIZE", keep},
	0x1f: {"EIATTR_NEED_CNP_WRAPPER", refuse},
	0x20: {"EIATTR_NEED_CNP_PATCH", refuse},
	0x21: {"EIATTR_EXPLICIT_CACHING", keep},
	0x22: {"EIATTR_ISTYPEP_USED", keep},
	0x23: {"EIATTR_MAX_STACK_SIZE", keep},
	0x24: {"EIATTR_SUQ_USED", keep},
	0x25: {"EIATTR_LD_CACHEMOD_INSTR_OFFSETS", offsets},
	0x26: {"EIATTR_LOAD_CACHE_REQUEST", keep},
	0x27: {"EIATTR_ATOM_SYS_INSTR_OFFSETS", offsets},
	0x28: {"EIATTR_COOP_GROUP_INSTR_OFFSETS", offsets},
	0x29: {"EIATTR_COOP_GROUP_MASK_REGIDS", keep}, // one register for each entry of 0x28
	0x2a: {"EIATTR_SW1850030_WAR", keep},
	0x2b: {"EIATTR_WMMA_USED", keep},
	0x2c: {"EIATTR_HAS_PRE_V10_OBJECT", keep},
	0x2d: {"EIATTR_ATOMF16_EMUL_INSTR_OFFSETS", offsets},
	0x2e: {"EIATTR_ATOM16_EMUL_INSTR_REG_MAP", pairs},
	0x2f: {"EIATTR_REGCOUNT", keep},
	0x30: {"EIATTR_SW2393858_WAR", refuse},
	0x31: {"EIATTR_INT_WARP_WIDE_INSTR_OFFSETS", offsets},
	0x32: {"EIATTR_SHARED_SCRATCH", keep},
	0x33: {"EIATTR_STATISTICS", keep},
	0x34: {"EIATTR_INDIRECT_BRANCH_TARGETS", targets},
	0x35: {"EIATTR_SW2861232_WAR", keep},
	0x36: {"EIATTR_SW_WAR", keep},
	0x37: {"EIATTR_CUDA_API_VERSION", keep},
	0x38: {"EIATTR_NUM_MBARRIERS", keep},
	0x39: {"EIATTR_MBARRIER_INSTR_OFFSETS", mbarrier},
	0x3a: {"EIATTR_COROUTINE_RESUME_ID_OFFSETS", refuse},
	0x3b: {"EIATTR_SAM_REGION_STACK_SIZE", keep},
	0x3c: {"EIATTR_PER_REG_TARGET_PERF_STATS", keep},
	0x3d: {"EIATTR_CTA_PER_CLUSTER", keep},
	0x3e: {"EIATTR_EXPLICIT_CLUSTER", keep},
	0x3f: {"EIATTR_MAX_CLUSTER_RANK", keep},
	0x40: {"EIATTR_INSTR_REG_MAP", refuse},
	0x41: {"EIATTR_RESERVED_SMEM_USED", keep},
	0x42: {"EIATTR_RESERVED_SMEM_0_SIZE", keep},
	0x44: {"EIATTR_UNUSED_LOAD_BYTE_OFFSET", pairs},
	0x45: {"EIATTR_KPARAM_INFO_V2", keep},
	0x46: {"EIATTR_SYSCALL_OFFSETS", offsets},
	0x47: {"EIATTR_SW_WAR_MEMBAR_SYS_INSTR_OFFSETS", offsets},
	0x4a: {"EIATTR_VRC_CTA_INIT_COUNT", keep},
	0x4c: {"EIATTR_NUM_BARRIERS", keep},
	0x4d: {"EIATTR_TEXMODE_INDEPENDENT", keep},
	0x4e: {"EIATTR_PERF_STATISTICS", keep},
	0x4f: {"EIATTR_AT_ENTRY_FRAGMENTS", refuse},
	0x50: {"EIATTR_SPARSE_MMA_MASK", keep},
	0x51: {"EIATTR_TCGEN05_1CTA_USED", keep},
	0x52: {"EIATTR_TCGEN05_2CTA_USED", keep},
	0x53: {"EIATTR_GEN_ERRBAR_AT_EXIT", refuse},
	0x54: {"EIATTR_REG_RECONFIG", keep},
	0x55: {"EIATTR_ANNOTATIONS", annotations},
	0x57: {"EIATTR_STACK_CANARY_TRAP_OFFSETS", offsets},
	0x59: {"EIATTR_LOCAL_CTA_ASYNC_STORE_OFFSETS", offsets},
	0x5a: {"EIATTR_MERCURY_FINALIZER_OPTIONS", keep},
	0x5b: {"EIATTR_BLOCKS_ARE_CLUSTERS", keep},
	0x5c: {"EIATTR_SANITIZE", refuse},
	0x5d: {"EIATTR_SYSCALLS_FALLBACK", refuse},
	0x5e: {"EIATTR_CUDA_REQ", keep},
	0x5f: {"EIATTR_MERCURY_ISA_VERSION", keep},
	0x61: {"EIATTR_RTCORE_ENTRY", refuse},
	// Its blocks take over the work of other blocks, without passing the guard.
	0x62: {"EIATTR_CLUSTER_LAUNCH_CONTROL_USED", refuse},
	0x64: {"EIATTR_MIN_PER_CTA_MEMORY_SIZE", keep},
	0x65: {"EIATTR_IGNOREOOB_CP_ASYNC_BULK_INSTR_OFFSETS", offsets},
	0x66: {"EIATTR_LANGUAGE", keep},
	0x6b: {"EIATTR_NVSAL_SW_WAR", number}, // since CUDA 13.2
	0x6d: {"EIATTR_PREEXIT_USED", number}, // since CUDA 13.4; by the kernel: an EXIT of the guard is the block's PREEXIT too
}

func attributeName(code byte) string {
	if rule, ok := attributeRules[code]; ok {
		return rule.name
	}
	return fmt.Sprintf("attribute %#02x", code)
}

type attribute struct {
	format, code byte
	value        uint16 // BVAL, HVAL
	data         []byte // SVAL
}

var errAttributes = errors.New("bad attributes")

func parseAttributes(data []byte) ([]attribute, error) {
	var list []attribute
	for len(data) > 0 {
		if len(data) < 4 {
			return nil, errAttributes
		}
		a := attribute{format: data[0], code: data[1], value: le.Uint16(data[2:])}
		data = data[4:]
		switch a.format {
		case eifmtNVAL, eifmtBVAL, eifmtHVAL:
		case eifmtSVAL:
			if int(a.value) > len(data) {
				return nil, errAttributes
			}
			a.data, data = data[:a.value:a.value], data[a.value:]
		default:
			return nil, errAttributes
		}
		list = append(list, a)
	}
	return list, nil
}

func formatAttributes(list []attribute) ([]byte, error) {
	var out []byte
	for _, a := range list {
		if a.format == eifmtSVAL {
			if len(a.data) > 0xffff {
				return nil, errors.New("attribute list full")
			}
			a.value = uint16(len(a.data))
		}
		out = append(out, a.format, a.code)
		out = le.AppendUint16(out, a.value)
		out = append(out, a.data...)
	}
	return out, nil
}

// shift moves the code offsets of one attribute by delta, in a copy.
func (a attribute) shift(delta, code uint32) (attribute, error) {
	rule := attributeRules[a.code].handling
	if rule == unknown || rule == refuse {
		return a, errors.New(attributeName(a.code))
	}
	if rule == keep || rule == number && (a.format == eifmtBVAL || a.format == eifmtHVAL) {
		return a, nil
	}
	if a.format != eifmtSVAL || len(a.data)%4 != 0 {
		return a, fmt.Errorf("%s of unknown form", attributeName(a.code))
	}
	words := make([]uint32, len(a.data)/4)
	for i := range words {
		words[i] = le.Uint32(a.data[4*i:])
	}
	shifted, ok := []int(nil), false
	switch rule {
	case offsets:
		for i := range words {
			shifted = append(shifted, i)
		}
		ok = true
	case targets:
		shifted, ok = branchOffsets(words)
	case pairs:
		for i := 0; i < len(words); i += 2 {
			shifted = append(shifted, i)
		}
		ok = len(words)%2 == 0
	case annotations:
		shifted, ok = spillOffsets(words)
	case mbarrier:
		shifted, ok = mbarrierOffsets(words)
	}
	if !ok {
		return a, fmt.Errorf("%s of unknown form", attributeName(a.code))
	}
	out := make([]byte, 0, len(a.data))
	for _, i := range shifted {
		if words[i] > code || words[i]%instructionSize != 0 {
			return a, fmt.Errorf("%s points outside the code", attributeName(a.code))
		}
		words[i] += delta
	}
	for _, w := range words {
		out = le.AppendUint32(out, w)
	}
	a.data = out
	return a, nil
}

// branchOffsets finds the offsets among records {branch, flags, count, target...}.
func branchOffsets(words []uint32) (indices []int, ok bool) {
	for i := 0; i < len(words); {
		if len(words)-i < 3 || uint64(words[i+2]) > uint64(len(words)-i-3) {
			return nil, false
		}
		indices = append(indices, i)
		count := int(words[i+2])
		for j := range count {
			indices = append(indices, i+3+j)
		}
		i += 3 + count
	}
	return indices, true
}

// spillOffsets finds the offsets among records {kind, instruction} of the one kind known.
func spillOffsets(words []uint32) (indices []int, ok bool) {
	const spillRefill = 1
	if len(words)%2 != 0 {
		return nil, false
	}
	for i := 0; i < len(words); i += 2 {
		if words[i] != spillRefill {
			return nil, false
		}
		indices = append(indices, i+1)
	}
	return indices, true
}

// mbarrierOffsets finds the offsets among records {instruction, register, address, kind}.
func mbarrierOffsets(words []uint32) (indices []int, ok bool) {
	if len(words)%4 != 0 {
		return nil, false
	}
	for i := 0; i < len(words); i += 4 {
		if words[i+3]>>24 != 0 {
			return nil, false
		}
		indices = append(indices, i)
	}
	return indices, true
}

// EICOMPAT_ATTR_ENABLE_OPPORTUNISTIC_FINALIZATION in .nv.compat, whose attributes have numbers of their
// own.
const eicompatOpportunisticFinalization = 0x06

func disableFinalization(s *section) error {
	list, err := parseAttributes(s.data)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].code == eicompatOpportunisticFinalization && list[i].format == eifmtBVAL {
			list[i].value = 0
		}
	}
	data, err := formatAttributes(list)
	if err == nil {
		s.edit(data)
	}
	return err
}

// dropMercury removes the second form of the code, which has no guard: the driver must not make code from it. Without it
// the cubin looks like one for sm_90.
func (c *cubin) dropMercury() error {
	if c.kept == len(c.sections) {
		return nil
	}
	for _, s := range c.sections[c.kept:] {
		if len(s.data) > 0 && !s.shared {
			s.edit(nil)
		}
	}
	for _, s := range c.sections[:c.kept] {
		if s.kind != shtCUDACompatInfo {
			continue
		}
		if err := disableFinalization(s); err != nil {
			return err
		}
	}
	return nil
}
