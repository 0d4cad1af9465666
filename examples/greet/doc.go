// Package greet is the example of the README: a function, its handler and a submit, in one program.
package greet
