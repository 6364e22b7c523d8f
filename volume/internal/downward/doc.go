// Package downward reads from a pod the values that its containers and volumes may
// refer to: its fields and its containers' resources, in a volume's file or in an
// environment variable. It also expands $(NAME) in a container's text. Names and
// formats are the API's (v1.37).
package downward
