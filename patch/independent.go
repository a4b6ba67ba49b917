package patch

import "fmt"

// Blocks can wait for each other only through what they read while they run. A kernel is independent if none of its instructions can tell
// a block what another one of its launch has written meanwhile, but by chance:
//
//   - L1, which is never brought up to date, may answer weak loads for as long as a block runs. So they are harmless where nothing empties
//     L1, and they leave what they read there. Loads with an order (volatile, relaxed, acquire, .cg), and atomics whose result is used, ask
//     L2, or the system.
//   - A thread's weak load must not return what is older than what the thread wrote there before in L2: an atomic whose result nobody uses, or a
//     store with an order. Once, that tells nothing that a block could wait for. In a loop that has both, it does.
//   - Shared memory, its barriers, and those of clusters are a block's or a cluster's own, whose blocks are stopped together.
//   - Asynchronous copies to shared memory ask L2, but say nothing but that they are done. A block could look at what they brought, again
//     and again; nothing that does so instead of a load is known.
//
// An instruction that is not listed below is not harmless, and neither is a call of code elsewhere. An independent kernel that waits all
// the same would make a stop late, which is bounded and notices it.
//
// The low 9 bits of an instruction are its operation. They are not documented: the corpus tests compare those that occur with the
// disassembler's names, for every architecture that has a guard.
var harmless = map[uint16]string{
	0x002: "MOV", 0x003: "P2R", 0x004: "R2P", 0x005: "CS2R", 0x006: "VOTE", 0x007: "SEL", 0x008: "FSEL", 0x009: "FMNMX",
	0x00a: "FSET", 0x00b: "FSETP", 0x00c: "ISETP", 0x00f: "VIMNMX3", 0x010: "IADD3", 0x011: "LEA", 0x012: "LOP3", 0x013: "IABS",
	0x016: "PRMT", 0x017: "IMNMX", 0x019: "SHF", 0x01c: "PLOP3", 0x020: "FMUL", 0x021: "FADD", 0x023: "FFMA", 0x024: "IMAD",
	0x025: "IMAD", 0x026: "IDP", 0x027: "IMAD", 0x028: "DMUL", 0x029: "DADD", 0x02a: "DSETP", 0x02b: "DFMA",
	0x02d: "PREEXIT", 0x02e: "ACQBULK", 0x02f: "ELECT", 0x030: "HADD2", 0x031: "HFMA2", 0x032: "HMUL2", 0x033: "HSET2",
	0x034: "HSETP2", 0x035: "HFMA2 IADD", 0x036: "VIADD", 0x037: "IMMA", 0x039: "I2IP", 0x03a: "MOVM", 0x03b: "LDSM",
	0x03c: "HMMA", 0x03e: "F2FP", 0x03f: "DMMA", 0x040: "HMNMX2", 0x043: "F2IP", 0x044: "STSM", 0x045: "I2FP",
	0x046: "VIADDMNMX", 0x048: "VIMNMX", 0x049: "FFMA2", 0x04a: "UVIMNMX", 0x051: "UFSEL", 0x053: "UFSETP", 0x054: "UFADD",
	0x055: "UFFMA", 0x056: "UFMUL", 0x05a: "UI2F", 0x05c: "UF2I", 0x05e: "UI2FP", 0x07a: "QMMA", 0x082: "UMOV", 0x083: "UP2UR",
	0x085: "UIMNMX", 0x086: "VOTEU", 0x087: "USEL", 0x08c: "UISETP", 0x090: "UIADD3", 0x091: "ULEA", 0x092: "ULOP3",
	0x096: "UPRMT", 0x097: "UIADD3", 0x099: "USHF", 0x09c: "UPLOP3", 0x0a4: "UIMAD", 0x0a5: "UIMAD", 0x0a6: "UIMAD",
	0x0b9: "ULDC", 0x0ba: "UF2FP", 0x0bb: "ULDC", 0x0bd: "UFLO", 0x0bf: "UPOPC", 0x0ca: "R2UR", 0x0cb: "CS2UR",
	0x100: "FLO", 0x101: "BREV", 0x102: "FCHK", 0x104: "F2F", 0x105: "F2I", 0x106: "I2F", 0x107: "FRND", 0x108: "MUFU",
	0x109: "POPC", 0x110: "F2F", 0x111: "F2I", 0x112: "I2F", 0x113: "FRND", 0x118: "NOP", 0x119: "S2R", 0x11a: "DEPBAR",
	0x11b: "ENDCOLLECTIVE", 0x11c: "B2R", 0x11d: "BAR", 0x141: "BSYNC", 0x142: "BREAK", 0x144: "CALL", 0x145: "BSSY",
	0x146: "YIELD", 0x147: "BRA", 0x148: "WARPSYNC", 0x149: "BRX", 0x14d: "EXIT", 0x14e: "LEPC", 0x150: "RET", 0x158: "BRXU",
	0x15c: "BPT", 0x15d: "NANOSLEEP", 0x166: "TLD", 0x17e: "LDG", 0x17f: "STG", 0x180: "LD", 0x181: "LDG", 0x182: "LDC",
	0x183: "LDL", 0x184: "LDS", 0x185: "ST", 0x186: "STG", 0x187: "STL", 0x188: "STS", 0x189: "SHFL", 0x18c: "ATOMS",
	0x18d: "ATOMS", 0x18e: "RED REDG", 0x192: "MEMBAR", 0x1a1: "MATCH", 0x1a3: "ATOMG", 0x1a6: "REDG", 0x1a7: "SYNCS",
	0x1a8: "ATOMG", 0x1aa: "QSPC",
	0x1ab: "ERRBAR CGAERRBAR", 0x1ac: "LDCU", 0x1ae: "LDGSTS", 0x1af: "LDGDEPBAR", 0x1b0: "ARRIVES", 0x1b1: "SYNCS",
	0x1b2: "SYNCS", 0x1b4: "UTMALDG", 0x1b5: "UTMASTG", 0x1b7: "UTMACMDFLUSH", 0x1bd: "STAS", 0x1c2: "R2UR", 0x1c3: "S2UR",
	0x1c4: "REDUX", 0x1c5: "WARPGROUP", 0x1c6: "FENCE", 0x1c7: "UCGABAR_ARV UCGABAR_WAIT", 0x1c8: "USETMAXREG",
	0x1c9: "USETSHMSZ", 0x1f0: "HGMMA", 0x1f1: "IGMMA", 0x1f3: "QGMMA",
}

const (
	operation = 0x1ff // of an instruction's low 16 bits

	form         = 0xe00 // of its operands, in the same bits
	formConstant = 0x800 // one is in the instruction itself

	opCALL       = 0x144 // relative, and so in this code, unless a register or a relocation says where to
	opCALLABS    = 0x143
	opBRA        = 0x147
	opBRX        = 0x149
	opBRXU       = 0x158
	opLD         = 0x180
	opLDG        = 0x181
	opLDG32      = 0x17e // of 32 bytes
	opST         = 0x185
	opSTG        = 0x186
	opSTG32      = 0x17f
	opATOMG      = 0x1a8
	opATOMGFloat = 0x1a3
	opRED        = 0x18e
	opREDFloat   = 0x1a6

	// Of an atomic without a used result, the bits of its first 64 that name a register, RZ, and of the others a predicate, PT.
	noRegister  = 0xff << 16
	noPredicate = 0x7 << (81 - 64)

	// Bits 77 to 80 of a load or a store: its order and scope.
	orderShift    = 77 - 64
	orderMask     = 0xf
	orderWeak     = 0
	orderConstant = 4 // of memory that the kernel does not write

	// Bits 84 to 86 of a load: what L1 does with what it read. L1 keeps it as the first, the last or a usual one to go. It does not
	// for last use (3) and no allocation (5); 6 and 7 are unknown.
	evictionShift = 84 - 64
	evictionMask  = 0x7
	lastUse       = 3
	unchanged     = 4
)

const callsElsewhere = "call of code elsewhere"

// dependence says why blocks of a kernel may wait for each other; "" if they cannot.
func (c *cubin) dependence(p *plan, relocations []relocation) string {
	code := p.text.data
	for _, r := range relocations {
		if r.target != p.text || !inside(code, r.offset&^(instructionSize-1), instructionSize) {
			continue
		}
		if op := le.Uint16(code[r.offset&^(instructionSize-1):]) & operation; op == opCALL || op == opBRA {
			return callsElsewhere
		}
	}
	loop := len(code) // where the loop begins that goes on to the end of the code
	for at := 0; at+instructionSize <= len(code); at += instructionSize {
		instruction := code[at:]
		op := le.Uint16(instruction) & operation
		if op == opCALLABS || op == opCALL && le.Uint16(instruction)&form != formConstant {
			return callsElsewhere
		}
		if harmless[op] == "" {
			return fmt.Sprintf("instruction %#x at %#x", op, at)
		}
		low, high := le.Uint64(instruction), le.Uint64(instruction[8:])
		switch op {
		case opCALL, opBRX, opBRXU:
			loop = 0 // where it goes, or comes back to, is in registers
		case opLD, opLDG, opLDG32:
			if order := high >> orderShift & orderMask; order != orderWeak && order != orderConstant {
				return fmt.Sprintf("load with an order at %#x", at)
			}
			if eviction := high >> evictionShift & evictionMask; eviction == lastUse || eviction > unchanged {
				return fmt.Sprintf("load past L1 at %#x", at)
			}
		case opATOMG, opATOMGFloat:
			if low&noRegister != noRegister || high&noPredicate != noPredicate {
				return fmt.Sprintf("atomic whose result is used at %#x", at)
			}
		}
	}
	return c.readsWrites(code, loop)
}

// readsWrites says where a loop has both weak loads and writes that such a load must not miss; "" if none has. The parts of a loop may lie
// anywhere, but a branch back passes each place between its first and its last instruction. So loops that overlap count as one. The other
// jumps, BSSY and WARPSYNC.COLLECTIVE, go ahead.
func (c *cubin) readsWrites(code []byte, loop int) string {
	load, write := 0, 0 // where, plus 1
	for at := len(code) - instructionSize; at >= 0; at -= instructionSize {
		if at < loop {
			load, write = 0, 0
		}
		low, high := le.Uint64(code[at:]), le.Uint64(code[at+8:])
		order := high >> orderShift & orderMask
		switch low & operation {
		case opBRA:
			if target := c.branchTarget(at, low, high); target <= at {
				loop = min(loop, target)
			}
		case opLD, opLDG, opLDG32:
			if order == orderWeak {
				load = at + 1
			}
		case opST, opSTG, opSTG32:
			if order != orderWeak {
				write = at + 1
			}
		case opRED, opREDFloat, opATOMG, opATOMGFloat:
			write = at + 1
		}
		if at >= loop && load > 0 && write > 0 {
			return fmt.Sprintf("loop that may load at %#x what it writes at %#x", load-1, write-1)
		}
	}
	return ""
}

// branchTarget decodes a branch, which counts from the next instruction in units of 4 bytes: in bits 34 to 81 and, since sm_90, 16 to 23
// below these.
func (c *cubin) branchTarget(at int, low, high uint64) int {
	offset := int64(high<<46|low>>34<<16) >> 16
	if c.sm >= 90 {
		offset = offset<<8 | int64(low>>16&0xff)
	}
	return at + instructionSize + int(offset)*4
}
