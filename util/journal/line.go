package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// line is one change: eight hexadecimal digits of CRC-32C over the JSON that
// follows them after a space.
type line struct {
	Op    string          `json:"op"`
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value,omitempty"`
}

const (
	opPut    = "put"
	opNote   = "note"
	opDelete = "delete"
	opBegin  = "begin" // the first line of a file; the key is the file's own
)

// sumLen is the length of the checksum and the space behind it.
const sumLen = 9

func (l line) encode() ([]byte, error) { return l.appendTo(nil) }

// appendTo appends the line as it is in the file.
func (l line) appendTo(text []byte) ([]byte, error) {
	start := len(text)
	text, err := l.appendBody(append(text, "........ "...))
	if err != nil {
		return nil, fmt.Errorf("the journal's entry %q: %w", l.Key, err)
	}
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], checksum(text[start+sumLen:]))
	hex.Encode(text[start:], sum[:])
	return append(text, '\n'), nil
}

// appendBody appends the line's JSON, without a copy of the value where that can be written as it
// is given.
func (l line) appendBody(text []byte) ([]byte, error) {
	if !isPlain(l.Key) || !isVerbatim(l.Value) {
		body, err := json.Marshal(l)
		return append(text, body...), err
	}
	text = slices.Grow(text, len(l.Op)+len(l.Key)+len(l.Value)+40) // and a newline
	text = append(append(text, `{"op":"`...), l.Op...)
	text = append(append(text, `","key":"`...), l.Key...)
	text = append(text, '"')
	if len(l.Value) > 0 {
		text = append(append(text, `,"value":`...), l.Value...)
	}
	return append(text, '}'), nil
}

// isVerbatim reports whether a value can be a part of a line as it is.
func isVerbatim(value json.RawMessage) bool {
	return len(value) == 0 || !bytes.ContainsAny(value, "\n\r") && len(bytes.TrimSpace(value)) == len(value) && json.Valid(value)
}

func checksum(body []byte) uint32 {
	return crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
}

var (
	errChecksum = errors.New("its checksum does not match")
	errForm     = errors.New("it is not a line of a journal")
	errHole     = errors.New("it has lost a part to zeros")
)

func decode(text []byte) (line, error) {
	l, err := decodeLine(text)
	if err != nil {
		return line{}, err
	}
	switch l.Op {
	case opPut, opNote, opDelete, opBegin:
		return l, nil
	}
	return line{}, fmt.Errorf("it asks for %q, which this version does not know", l.Op)
}

func decodeLine(text []byte) (line, error) {
	if len(text) < sumLen || text[sumLen-1] != ' ' {
		return line{}, errForm
	}
	sum, err := strconv.ParseUint(string(text[:sumLen-1]), 16, 32)
	if err != nil {
		return line{}, errForm
	}
	body := text[sumLen:]
	if uint32(sum) != checksum(body) {
		return line{}, errChecksum
	}
	if l, ok := decodeOwn(body); ok {
		return l, nil
	}
	var l line
	if err := json.Unmarshal(body, &l); err != nil {
		return line{}, fmt.Errorf("%w: %w", errForm, err)
	}
	return l, nil
}

// decodeOwn reads a line of the form that [line.encode] writes, without a copy of its value,
// in a third of the time. Of any other line it reports false.
func decodeOwn(body []byte) (l line, ok bool) {
	op, rest, ok := bytes.Cut(body, []byte(`","key":"`))
	op, isOp := bytes.CutPrefix(op, []byte(`{"op":"`))
	key, rest, isKey := bytes.Cut(rest, []byte{'"'})
	if !ok || !isOp || !isKey || !isPlain(op) || !isPlain(key) {
		return line{}, false
	}
	l = line{Op: string(op), Key: string(key)}
	if string(rest) == "}" {
		return l, true
	}
	value, isValue := bytes.CutPrefix(rest, []byte(`,"value":`))
	value, isEnd := bytes.CutSuffix(value, []byte{'}'})
	l.Value = slices.Clip(value)
	return l, isValue && isEnd && len(bytes.TrimSpace(value)) == len(value) && json.Valid(value)
}

// isPlain reports whether a JSON string stands for itself.
func isPlain[T string | []byte](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// Read returns what the journal at path holds, without changing it and beside its
// owner, if it has one: the changes that were whole at this moment. Damage is
// *[DamagedError]s, as for [Open], earlier ones included. A journal that was
// never made holds nothing.
func Read(path string) (held []Entry, damaged []error, err error) {
	c, err := readContent(path)
	if err != nil {
		return nil, nil, err
	}
	kept, err := KeptDamage(path)
	return c.held, append(c.damaged, kept...), err
}

// KeptDamage returns the damage that was found whenever the journal was opened,
// as [Read] does, from the copies that are kept beside it and nothing else. It
// is there until a person removes the copies, or moves them elsewhere.
func KeptDamage(path string) (damaged []error, err error) {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &Error{Op: "read", Path: path, Err: err}
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), keptPrefix(base)) {
			continue
		}
		kept := filepath.Join(dir, entry.Name())
		text, err := os.ReadFile(kept)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a person has just ended it
		}
		c := parse(path, text)
		if err != nil {
			c.damage(path, 0, err)
		}
		if len(c.damaged) == 0 {
			c.damage(path, 0, keptError(base, entry.Name()))
		}
		for _, d := range c.damaged {
			d.(*DamagedError).Kept = kept
		}
		damaged = append(damaged, c.damaged...)
	}
	return damaged, nil
}

// keptError says what a copy tells that shows no damage by itself.
func keptError(base, kept string) error {
	if kept == goneName(base) {
		return errGone
	}
	return errKept
}

// content is what a journal's file holds.
type content struct {
	held    []Entry
	lines   [][]byte // the lines of what it holds
	damaged []error  // each a *DamagedError
	exists  bool
	id      string // the file's own
	torn    bool   // a line was cut off
	end     int64  // where the lines end
}

// entryLines is an entry, and its lines as they are in the file.
type entryLines struct {
	Entry
	put, note []byte
}

func readContent(path string) (content, error) {
	proof, err := readProof(path) // before the file: its owner may add lines
	if err != nil {
		return content{}, err
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return content{}, &Error{Op: "read", Path: path, Err: err}
	}
	c := parse(path, text)
	c.exists = err == nil
	c.compare(path, proof)
	return c, nil
}

// parse replays the lines. The file is written into zeros, so a line that a
// crash cut off lacks its end and is followed by zeros at most; every other
// line that cannot be read is damage, wherever it stands.
func parse(path string, text []byte) (c content) {
	entries := make(map[string]*entryLines)
	var order []string
	text = trimZeros(text)
	number := 0
	for raw := range bytes.Lines(text) {
		number++
		whole, ended := bytes.CutSuffix(raw, []byte{'\n'})
		if !ended {
			c.torn = true
			break
		}
		c.end += int64(len(raw))
		if hole := bytes.LastIndexByte(whole, 0); hole >= 0 {
			c.damage(path, number, errHole)
			whole, raw = whole[hole+1:], raw[hole+1:]
		}
		l, err := decode(whole)
		if err != nil {
			c.damage(path, number, err)
			continue
		}
		switch l.Op {
		case opBegin:
			c.id = cmp.Or(c.id, l.Key)
		case opPut:
			if entries[l.Key] == nil {
				order = append(order, l.Key)
			}
			entries[l.Key] = &entryLines{Entry: Entry{Key: l.Key, Value: l.Value}, put: raw}
		case opNote:
			if e := entries[l.Key]; e != nil {
				e.Note, e.note = l.Value, raw
			}
		case opDelete:
			delete(entries, l.Key)
		}
	}
	for _, key := range order {
		if e := entries[key]; e != nil {
			c.held, c.lines = append(c.held, e.Entry), append(c.lines, e.put, e.note)
			delete(entries, key) // a key that was deleted and put again is in order twice
		}
	}
	return c
}

func trimZeros(text []byte) []byte { return bytes.TrimRight(text, "\x00") }

// damage notes a damaged line; neighbours count as one. Number 0 is the file as
// a whole.
func (c *content) damage(path string, number int, err error) {
	if len(c.damaged) > 0 && number > 0 {
		if last := c.damaged[len(c.damaged)-1].(*DamagedError); last.Last >= number-1 {
			last.Last = number
			return
		}
	}
	c.damaged = append(c.damaged, &DamagedError{Path: path, Line: number, Last: number, Err: err})
}
