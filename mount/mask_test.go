package mount

import "testing"

func TestMask(t *testing.T) {
	tests := []struct {
		sensitive  []string
		text, want string
	}{
		{nil, "as it is", "as it is"},
		{[]string{""}, "as it is", "as it is"},
		{[]string{"password=hunter2"}, "option password=hunter2, xhunter2x", "option <masked>, x<masked>x"},
		{[]string{"username=bob,password=hunter2"}, "bob; hunter2; username=bob", "<masked>; <masked>; <masked>"},
		{[]string{"pin=1"}, "pin 1 1 11 1.1=1", "pin <masked> <masked> 11 <masked>.<masked>=<masked>"},
		{[]string{"x=y"}, "you may say y", "you may say <masked>"},
		{[]string{"a=secret", "b=secretive"}, "secretive", "<masked>"},
		{[]string{"hunter2"}, "hunter2", "<masked>"},
		// A comma in a secret: with and without what protects it, and in parts.
		{[]string{`key="open,sesame"`}, `got "open,sesame", open,sesame!`, "got <masked>, <masked>!"},
		{[]string{`key="open,sesame"`}, `key=open,sesame; key="open,sesame"`, "<masked>; <masked>"},
		{[]string{`key=open\,sesame`}, `got open\,sesame, open,sesame`, "got <masked>, <masked>"},
		{[]string{`ro,key="open,sesame",x="p\,q\,r"`}, `open,sesame and p,q,r`, "<masked> and <masked>"},
		{[]string{`key="open,sesame"`}, `Unknown parameter 'sesame', bad value 'open'`, "Unknown parameter '<masked>', bad value '<masked>'"},
		{[]string{`key="open,sesame"`}, `Unknown parameter 'sesame"', bad value '"open'`, "Unknown parameter '<masked>', bad value '<masked>'"},
		{[]string{`key=open\,sesame`}, `bad value 'open\', 'open', 'sesame'`, "bad value '<masked>', '<masked>', '<masked>'"},
	}
	for _, tc := range tests {
		if got := (Request{Sensitive: tc.sensitive}).Mask(tc.text); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.sensitive, got, tc.want)
		}
	}
}
