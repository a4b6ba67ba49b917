package patch

// Entry describes a kernel of a cubin.
type Entry struct {
	SM             int
	Name           string
	Code           []byte
	Registers      int
	Barriers       int
	Base           int // of the parameters in constant bank 0
	ParameterBytes int
	UsesCTAIDZ     bool
	Exits          []uint32 // offsets of EXIT instructions
}

// Entries reads the kernels of a cubin, without rewriting them.
func Entries(image []byte) ([]Entry, error) {
	c, err := parseCubin(image)
	if err != nil {
		return nil, err
	}
	around := c.look(Options{})
	var entries []Entry
	for _, s := range c.symbols {
		if !s.isKernel() {
			continue
		}
		p := &plan{Kernel: Kernel{Name: s.name}, symbol: s.index}
		if err := c.findSections(p, around); err != nil {
			return nil, err
		}
		list, err := parseAttributes(p.info.data)
		if err != nil {
			return nil, err
		}
		if err := p.readParameters(list); err != nil {
			return nil, err
		}
		e := Entry{
			SM: c.sm, Name: s.name, Code: p.text.data, Registers: around.registers[s.index],
			Base: int(p.base), ParameterBytes: p.ParameterBytes,
		}
		e.read(list)
		entries = append(entries, e)
	}
	return entries, nil
}

func (e *Entry) read(list []attribute) {
	for _, a := range list {
		switch a.code {
		case eiattrNumBarriers:
			e.Barriers = int(a.value)
		case eiattrCTAIDZUsed:
			e.UsesCTAIDZ = true
		case eiattrExitInstrOffsets:
			for data := a.data; len(data) >= 4; data = data[4:] {
				e.Exits = append(e.Exits, le.Uint32(data))
			}
		}
	}
}
