package main

// void give_back_signals(void);
import "C"

func giveBackSignals() { C.give_back_signals() }
