package patch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// The most bytes of parameters that a kernel may have, since CUDA 12.1 (EIATTR_CUDA_API_VERSION 121) and before it.
	// Before sm_90, parameters that exceed maxParametersLow lie in another place of the constant bank.
	maxParameters        = 32764
	maxParametersLow     = 4352
	maxParametersClassic = 4096
	largeParametersSince = 121

	maxRegisters = 255
)

// plan is how one kernel is to be rewritten.
type plan struct {
	Kernel
	symbol    int
	text      *section
	info      *section
	constants *section
	base      uint32 // of the parameters in constant bank 0
	guard     *Guard

	symbols     []symbol // in its code
	relocations []relocation
	bankSymbol  int // the constant bank section's own

	barriersInFlags bool // the section's, instead of an attribute

	attributes []attribute
	hidden     attribute // its EIATTR_KPARAM_INFO
}

// surroundings is what the plans of all kernels look things up in. Keys are indices of sections unless they say otherwise.
type surroundings struct {
	options     Options
	symbols     map[int][]symbol // without the symbols of sections
	registers   map[int]int      // by symbol
	ownSymbols  map[int]int      // the symbol of each section
	infos       map[int]*section // by code section
	constants   map[int]*section // by code section
	relocations map[int][]relocation
	err         error // why no kernel can be rewritten
}

func (c *cubin) look(options Options) *surroundings {
	around := &surroundings{
		options: options, symbols: make(map[int][]symbol), registers: c.registerCounts(),
		ownSymbols: make(map[int]int), infos: make(map[int]*section), constants: make(map[int]*section),
	}
	for _, s := range c.symbols {
		switch {
		case s.section == 0 || s.section >= shnLoreserve:
		case s.kind == sttSection:
			around.ownSymbols[int(s.section)] = s.index
		default:
			around.symbols[int(s.section)] = append(around.symbols[int(s.section)], s)
		}
	}
	for _, s := range c.sections[:c.kept] {
		switch {
		case s.kind == shtCUDAInfo && s.info != 0:
			around.infos[int(s.info)] = s
		case s.kind == shtProgbits && strings.HasPrefix(s.name, ".nv.constant0."):
			around.constants[int(s.info)] = s
		}
	}
	around.relocations, around.err = c.indexRelocations()
	for _, s := range c.sections[:c.kept] {
		if s.flags&shfMercury != 0 {
			around.err = errMercury
		}
		isKernel := slices.ContainsFunc(around.symbols[s.index], symbol.isKernel)
		if s.kind == shtProgbits && s.flags&shfExecinstr != 0 && !isKernel && c.takesOver(s) {
			around.err = errTakesOver // any kernel may call it
		}
	}
	return around
}

var errTakesOver = errors.New("blocks take over the work of others (clusterlaunchcontrol)")

// takesOver says whether code has UGETNEXTWORKID (since sm_100): a block that uses it does the work of blocks that never
// start, so they pass no guard. The compiler writes no attribute for it.
func (c *cubin) takesOver(code *section) bool {
	const opUGETNEXTWORKID = 0x3ca // in the low 12 bits
	if c.sm < 100 {
		return false
	}
	for data := code.data; len(data) >= instructionSize; data = data[instructionSize:] {
		if le.Uint16(data)&0xfff == opUGETNEXTWORKID {
			return true
		}
	}
	return false
}

// plan decides on every kernel.
func (c *cubin) plan(options Options) []*plan {
	around := c.look(options)
	var plans []*plan
	for _, s := range c.symbols {
		if !s.isKernel() {
			continue
		}
		p := &plan{Kernel: Kernel{Name: s.name, Registers: around.registers[s.index]}, symbol: s.index}
		if err := c.examine(p, around); err != nil {
			p.Reason = err.Error()
			var of refusal
			if errors.As(err, &of) {
				p.Refusal = of.kind
			}
		} else {
			p.Guarded = true
		}
		plans = append(plans, p)
	}
	return plans
}

func (s symbol) isKernel() bool {
	return s.kind == sttFunc && s.other&stoCUDAEntry != 0 && s.section != 0 && s.section < shnLoreserve
}

// registerCounts reads EIATTR_REGCOUNT of .nv.info: {symbol, count}.
func (c *cubin) registerCounts() map[int]int {
	counts := make(map[int]int)
	for _, s := range c.sections[:c.kept] {
		if s.kind != shtCUDAInfo || s.info != 0 {
			continue
		}
		list, err := parseAttributes(s.data)
		if err != nil {
			continue
		}
		for _, a := range list {
			if a.code == eiattrRegcount && len(a.data) == 8 {
				counts[int(le.Uint32(a.data))] = int(le.Uint32(a.data[4:]))
			}
		}
	}
	return counts
}

// examine decides on one kernel and prepares what apply needs.
func (c *cubin) examine(p *plan, around *surroundings) error {
	if err := c.findSections(p, around); err != nil {
		return err
	}
	list, err := parseAttributes(p.info.data)
	if err != nil {
		return err
	}
	if err := p.readParameters(list); err != nil {
		return err
	}
	if p.guard = around.options.Guards.bySM[c.sm]; p.guard == nil {
		return refused(RefusedSM, "no guard for sm_%d", c.sm)
	}
	if p.guard.begins(p.text.data) {
		return errors.New("has a guard")
	}
	if around.options.differs[kernelOfFamily{c.sm / 10, p.Name}] {
		return errors.New("not the same for all GPUs of the family")
	}
	if speak := around.options.Refuse; speak != nil {
		if reason := speak(p.Name); reason != "" {
			return refused(RefusedPeers, "%s", reason)
		}
	}
	if around.err != nil {
		return around.err
	}
	if c.takesOver(p.text) {
		return errTakesOver
	}
	if err := p.hide(list); err != nil {
		return err
	}
	if err := p.checkRegisters(list); err != nil {
		return err
	}
	if err := p.moveAttributes(list); err != nil {
		return err
	}
	p.relocations = around.relocations[p.text.index]
	if err := c.checkRelocations(p, p.relocations); err != nil {
		return err
	}
	p.Dependence = c.dependence(p, p.relocations)
	p.Independent = p.Dependence == ""
	return nil
}

// findSections finds the sections of a kernel, and refuses it if they are not laid out as compilers do.
func (c *cubin) findSections(p *plan, around *surroundings) error {
	s := c.symbols[p.symbol]
	if int(s.section) >= c.kept {
		return errors.New("no code")
	}
	p.text, p.barriersInFlags = c.sections[s.section], c.osabi == osabiCUDA12
	p.info, p.constants = around.infos[p.text.index], around.constants[p.text.index]
	switch {
	case p.text.kind != shtProgbits || p.text.flags&shfExecinstr == 0 || p.text.name != ".text."+p.Name:
		return errors.New("code in an unexpected section")
	case s.value != 0 || s.size > p.text.size || p.text.size%instructionSize != 0 || p.text.size == 0:
		return errors.New("code of unexpected extent")
	case p.text.size > 1<<30:
		return errors.New("code too long")
	case p.info == nil || p.constants == nil:
		return errors.New("no attributes or constant bank")
	}
	for _, other := range around.symbols[p.text.index] {
		if other.index != p.symbol && (other.isKernel() || other.value == 0 || other.value > p.text.size) {
			return fmt.Errorf("symbol %s in its code", other.name)
		}
	}
	p.symbols = around.symbols[p.text.index]
	if p.bankSymbol = around.ownSymbols[p.constants.index]; p.bankSymbol == 0 {
		return errors.New("no symbol for its constant bank")
	}
	return nil
}

// readParameters finds out how many parameters there are, and where.
func (p *plan) readParameters(list []attribute) error {
	end, highest, constants, size := uint32(0), -1, false, -1
	for _, a := range list {
		switch a.code {
		case eiattrParamCbank: // {symbol, u16 offset, u16 size}
			if len(a.data) != 8 || constants {
				return errors.New("EIATTR_PARAM_CBANK of unknown form")
			}
			constants = true
			p.base, p.ParameterBytes = uint32(le.Uint16(a.data[4:])), int(le.Uint16(a.data[6:]))
		case eiattrCbankParamSize:
			if a.format != eifmtHVAL {
				return errors.New("EIATTR_CBANK_PARAM_SIZE of unknown form")
			}
			size = int(a.value)
		case eiattrKparamInfo, eiattrKparamInfoV2:
			ordinal, offset, length, err := parameterOf(a)
			if err != nil {
				return err
			}
			highest, end = max(highest, ordinal), max(end, offset+length)
			p.Parameters++
			if ordinal >= len(p.Layout) {
				p.Layout = append(p.Layout, make([]Parameter, ordinal+1-len(p.Layout))...)
			}
			p.Layout[ordinal] = Parameter{uint16(offset), uint16(length)}
		}
	}
	switch {
	case p.Parameters != highest+1:
		return errors.New("parameters are numbered with gaps")
	case constants != (size >= 0) || constants && size != p.ParameterBytes:
		return errors.New("parameter sizes contradict each other")
	case constants != (p.Parameters > 0):
		return errors.New("parameters without a description")
	case end > uint32(p.ParameterBytes):
		return errors.New("parameters beyond their size")
	}
	return nil
}

// hide prepares the hidden parameter.
func (p *plan) hide(list []attribute) error {
	bases := p.guard.Parameters
	if p.base == 0 && p.Parameters == 0 {
		p.base = bases[0]
	}
	if !slices.Contains(bases, p.base) {
		return fmt.Errorf("parameters at %#x of constant bank 0", p.base)
	}
	if p.constants.size != uint64(p.base)+uint64(p.ParameterBytes) {
		return errors.New("constant bank 0 of unexpected size")
	}
	p.HiddenOffset = (p.ParameterBytes + hiddenSize - 1) &^ (hiddenSize - 1)
	p.hidden = attribute{format: eifmtSVAL, code: eiattrKparamInfo}
	limit := maxParametersClassic
	for _, a := range list {
		if a.code == eiattrKparamInfoV2 {
			p.hidden.code = eiattrKparamInfoV2
		}
		if a.code == eiattrCUDAAPIVersion && len(a.data) == 4 && le.Uint32(a.data) >= largeParametersSince {
			limit = maxParameters
		}
	}
	if limit == maxParameters && p.base != bases[len(bases)-1] {
		limit = maxParametersLow
	}
	if p.HiddenOffset+hiddenSize > limit {
		return refused(RefusedRoom, "%d bytes of parameters leave no room", p.ParameterBytes)
	}
	p.hidden.data = formatParameter(p.hidden.code, p.Parameters, p.HiddenOffset, hiddenSize)
	return nil
}

func (p *plan) checkRegisters(list []attribute) error {
	if p.Registers == 0 || p.Registers > maxRegisters+1 {
		return errors.New("no register count")
	}
	p.GuardedRegisters = max(p.Registers, p.guard.Registers)
	for _, a := range list {
		if a.code == eiattrMaxregCount && a.format == eifmtHVAL && int(a.value) < p.GuardedRegisters {
			return refused(RefusedRoom, "limited to %d registers", a.value)
		}
	}
	return nil
}

// moveAttributes makes the kernel's new list of attributes.
func (p *plan) moveAttributes(list []attribute) error {
	delta, size := uint32(len(p.guard.code)), uint32(p.text.size)
	var out []attribute
	hidden, barriers, exits, ctaidz, stack := false, false, false, false, false
	for _, a := range list {
		shifted, err := a.shift(delta, size)
		if err != nil {
			return err
		}
		switch a.code {
		case eiattrKparamInfo, eiattrKparamInfoV2:
			if !hidden {
				out, hidden = append(out, p.hidden), true
			}
		case eiattrParamCbank:
			shifted.data = append([]byte(nil), a.data...)
			le.PutUint16(shifted.data[6:], uint16(p.HiddenOffset+hiddenSize))
		case eiattrCbankParamSize:
			shifted.value = uint16(p.HiddenOffset + hiddenSize)
		case eiattrNumBarriers:
			if a.format != eifmtBVAL {
				return errors.New("EIATTR_NUM_BARRIERS of unknown form")
			}
			barriers = true
			shifted.value = max(a.value, uint16(p.guard.Barriers))
		case eiattrExitInstrOffsets:
			if !exits {
				shifted.data = append(p.exits(), shifted.data...)
			}
			exits = true
		case eiattrCTAIDZUsed:
			ctaidz = true
		case eiattrCRSStackSize:
			stack = true
		}
		out = append(out, shifted)
	}
	if !hidden { // the kernel has no parameters, so no attribute says where they lie
		bank := le.AppendUint32(nil, uint32(p.bankSymbol))
		bank = le.AppendUint16(bank, uint16(p.base))
		bank = le.AppendUint16(bank, hiddenSize)
		out = append(out, p.hidden,
			attribute{format: eifmtHVAL, code: eiattrCbankParamSize, value: hiddenSize},
			attribute{format: eifmtSVAL, code: eiattrParamCbank, data: bank})
	}
	if !exits {
		out = append(out, attribute{format: eifmtSVAL, code: eiattrExitInstrOffsets, data: p.exits()})
	}
	if p.guard.UsesCTAIDZ && !ctaidz {
		out = append(out, attribute{format: eifmtNVAL, code: eiattrCTAIDZUsed})
	}
	if !stack {
		out = append(out, attribute{format: eifmtSVAL, code: eiattrCRSStackSize, data: make([]byte, 4)})
	}
	p.attributes = out
	if !barriers && !p.barriersInFlags {
		p.attributes = append(p.attributes, attribute{
			format: eifmtBVAL, code: eiattrNumBarriers, value: uint16(p.guard.Barriers),
		})
	}
	return nil
}

func (p *plan) exits() []byte {
	var out []byte
	for _, offset := range p.guard.Exits {
		out = le.AppendUint32(out, offset)
	}
	return out
}

// apply carries out the plans and puts the image together.
func (c *cubin) apply(plans []*plan, options Options) ([]byte, error) {
	if err := c.dropMercury(); err != nil {
		return nil, err
	}
	counts := make(map[int]int)
	for _, p := range plans {
		if !p.Guarded {
			continue
		}
		counts[p.symbol] = p.GuardedRegisters
		if err := c.applyTo(p); err != nil {
			return nil, err
		}
	}
	if err := c.setRegisterCounts(counts); err != nil {
		return nil, err
	}
	return c.write(options.maxSize())
}

func (c *cubin) applyTo(p *plan) error {
	delta := uint64(len(p.guard.code))
	c.moveRelocations(p, p.relocations, delta)
	p.text.edit(append(p.guard.instance(p.base+uint32(p.HiddenOffset)), p.text.data...))
	info, err := formatAttributes(p.attributes)
	if err != nil {
		return err
	}
	p.info.edit(info)
	constants := make([]byte, int(p.base)+p.HiddenOffset+hiddenSize)
	copy(constants, p.constants.data)
	p.constants.edit(constants)
	for _, s := range p.symbols {
		if s.index == p.symbol {
			c.setSymbol(s.index, 0, s.size+delta)
		} else {
			c.setSymbol(s.index, s.value+delta, s.size)
		}
	}
	p.text.flags, p.text.info = p.newFlags(p.text.flags), p.newInfo(p.text.info)
	return nil
}

// newInfo is what becomes of a code section's sh_info. Before sm_90 a second register count stands there; in debug builds it leaves
// out the functions that are called.
func (p *plan) newInfo(info uint32) uint32 {
	if own := info >> 24; own != 0 {
		return info&0xffffff | max(own, uint32(p.guard.Registers))<<24
	}
	return info
}

// newFlags is what becomes of a code section's flags, which may hold its barriers.
func (p *plan) newFlags(flags uint64) uint64 {
	if !p.barriersInFlags {
		return flags
	}
	const shift, mask = 20, uint64(0x1f << 20)
	return flags&^mask | max(flags&mask>>shift, uint64(p.guard.Barriers))<<shift
}

func (c *cubin) setRegisterCounts(counts map[int]int) error {
	for _, s := range c.sections[:c.kept] {
		if s.kind != shtCUDAInfo || s.info != 0 {
			continue
		}
		list, err := parseAttributes(s.data)
		if err != nil {
			return err
		}
		for i, a := range list {
			if a.code != eiattrRegcount || len(a.data) != 8 {
				continue
			}
			if count, ok := counts[int(le.Uint32(a.data))]; ok {
				list[i].data = le.AppendUint32(append([]byte(nil), a.data[:4]...), uint32(count))
			}
		}
		data, err := formatAttributes(list)
		if err != nil {
			return err
		}
		s.edit(data)
	}
	return nil
}

// parameterOf reads two attributes.
// EIATTR_KPARAM_INFO: {u32 index, u16 ordinal, u16 offset, u32 flags}, with the size in flags[31:18].
// EIATTR_KPARAM_INFO_V2: {u32 index, u16 ordinal, u16 offset, u16 size, u8, u8 address space}.
func parameterOf(a attribute) (ordinal int, offset, size uint32, err error) {
	if a.format != eifmtSVAL || len(a.data) != 12 {
		return 0, 0, 0, fmt.Errorf("%s of unknown form", attributeName(a.code))
	}
	size = le.Uint32(a.data[8:])
	if a.code == eiattrKparamInfo {
		size >>= 18
	} else {
		size &= 0xffff
	}
	if size > maxParameters {
		return 0, 0, 0, errors.New("parameter too large")
	}
	return int(le.Uint16(a.data[4:])), uint32(le.Uint16(a.data[6:])), size, nil
}

func formatParameter(code byte, ordinal, offset, size int) []byte {
	data := make([]byte, 4, 12)
	data = le.AppendUint16(data, uint16(ordinal))
	data = le.AppendUint16(data, uint16(offset))
	if code == eiattrKparamInfoV2 {
		return le.AppendUint32(data, uint32(size))
	}
	const bank = 0x1f << 12 // as the compiler writes it for every parameter
	return le.AppendUint32(data, uint32(size)<<18|bank)
}
