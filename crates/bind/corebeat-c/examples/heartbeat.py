#!/usr/bin/env python3
"""Heartbeats from Python, through ctypes.

    COREBEAT_LIBRARY=../../../../target/release/libcorebeat.so ./heartbeat.py
"""
import ctypes
import os
import time

lib = ctypes.CDLL(os.environ.get("COREBEAT_LIBRARY", "libcorebeat.so"))
lib.hrm_why.restype = ctypes.c_char_p


class Hrm(ctypes.Structure):
    _fields_ = [("counter", ctypes.c_void_p), ("inner", ctypes.c_void_p)]


def call(name, *arguments):
    if getattr(lib, name)(*arguments):
        raise OSError(f"{name}: {lib.hrm_why().decode()}")


hrm = Hrm()
call("hrm_attach", ctypes.byref(hrm), 7, 0)
call("hrm_set_min_heart_rate", ctypes.byref(hrm), 10)
call("hrm_set_max_heart_rate", ctypes.byref(hrm), 30)
for _ in range(20):
    time.sleep(0.02)
    call("heartbeat", ctypes.byref(hrm), ctypes.c_uint64(1))
rate = ctypes.c_uint32()
call("hrm_get_global_heart_rate", ctypes.byref(hrm), ctypes.byref(rate))
print(f"{rate.value} heartbeats per second")
call("hrm_detach", ctypes.byref(hrm))
