package sandbox

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/podvol/podvol/mount"
)

// fill gives everything in a value another value than zero. Texts are not Unicode, except
// those that are words.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
			if v.Type().Field(i).Name == "Capabilities" {
				v.Field(i).Index(0).SetString("CHOWN")
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
	case reflect.String:
		text := "\x00\xff\xc3ü\n\"\\<"
		if v.Type() == reflect.TypeFor[mount.Propagation]() {
			text = string(mount.PropagationShared)
		}
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(-7)
	default:
		v.SetUint(1<<32 - 1)
	}
}

// The child gets each byte of its order.
func TestOrderArrivesAsItWasSent(t *testing.T) {
	var whole order
	fill(reflect.ValueOf(&whole).Elem())
	for _, o := range []order{whole, {}} {
		var pipe bytes.Buffer
		if err := o.send(&pipe); err != nil {
			t.Fatal(err)
		}
		got, err := receiveOrder(&pipe)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, &o) {
			t.Errorf("%+v\narrives as\n%+v", o, *got)
		}
	}
	if _, err := receiveOrder(bytes.NewReader([]byte(`{"Args":["`))); err == nil {
		t.Error("a part of an order is one")
	}
}
