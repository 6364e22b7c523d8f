// Package userns answers what a program that wants a user namespace
// (user_namespaces(7)) has to know: which ids one has, which ids a user may map
// into one (subuid(5)), and which setting of the machine denies it one.
//
// Like every package below util, it carries no promise of compatibility.
package userns
