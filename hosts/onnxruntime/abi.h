// SPDX-License-Identifier: Apache-2.0
// The part of ONNX Runtime's binary interface that this folder uses, written by abi.py from the headers of API version
// 29. Whatever is unused is a void*.
#pragma once

#include <cstddef>
#include <cstdint>

inline constexpr std::uint32_t kOrtApi = 24;  // that of ONNX Runtime 1.24, which later ones have, too

enum OrtErrorCode {
  ORT_FAIL = 1,
  ORT_INVALID_ARGUMENT = 2,
  ORT_NOT_IMPLEMENTED = 9,
  ORT_EP_FAIL = 11,
};

enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16 = 4,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16 = 5,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING = 8,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL = 9,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32 = 12,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 = 13,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64 = 14,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128 = 15,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 = 16,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN = 17,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ = 18,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2 = 19,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ = 20,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4 = 21,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4 = 22,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1 = 23,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2 = 24,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2 = 25,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0 = 26,
};

enum OrtLoggingLevel {
  ORT_LOGGING_LEVEL_VERBOSE = 0,
  ORT_LOGGING_LEVEL_INFO = 1,
  ORT_LOGGING_LEVEL_WARNING = 2,
  ORT_LOGGING_LEVEL_ERROR = 3,
  ORT_LOGGING_LEVEL_FATAL = 4,
};

enum OrtOpAttrType {
  ORT_OP_ATTR_INT = 1,
  ORT_OP_ATTR_FLOAT = 3,
  ORT_OP_ATTR_STRING = 5,
};

enum OrtHardwareDeviceType {
  OrtHardwareDeviceType_CPU = 0,
  OrtHardwareDeviceType_GPU = 1,
  OrtHardwareDeviceType_NPU = 2,
};

enum OrtMemType {
  OrtMemTypeDefault = 0,
};

enum OrtCustomOpInputOutputCharacteristic {
  INPUT_OUTPUT_REQUIRED = 0,
  INPUT_OUTPUT_OPTIONAL = 1,
  INPUT_OUTPUT_VARIADIC = 2,
};

struct OrtAllocator;
struct OrtApi;
struct OrtCustomOp;
struct OrtCustomOpDomain;
struct OrtDataTransferImpl;
struct OrtDataType;
struct OrtEp;
struct OrtEpApi;
struct OrtEpDevice;
struct OrtEpFactory;
struct OrtEpGraphSupportInfo;
struct OrtGraph;
struct OrtHardwareDevice;
struct OrtKernelContext;
struct OrtKernelDef;
struct OrtKernelDefBuilder;
struct OrtKernelImpl;
struct OrtKernelInfo;
struct OrtKernelRegistry;
struct OrtKeyValuePairs;
struct OrtLogger;
struct OrtMemoryDevice;
struct OrtMemoryInfo;
struct OrtModelEditorApi;
struct OrtNode;
struct OrtNodeComputeContext;
struct OrtNodeComputeInfo;
struct OrtNodeFusionOptions;
struct OrtOpAttr;
struct OrtRunOptions;
struct OrtSessionOptions;
struct OrtShapeInferContext;
struct OrtSharedPrePackedWeightCache;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtTypeInfo;
struct OrtValue;
struct OrtValueInfo;

enum OrtCompiledModelCompatibility : int;
enum OrtEpDataLayout : int;

using OrtKernelCreateFunc = OrtStatus* (*)(void*, const OrtKernelInfo*, OrtKernelImpl**);

struct OrtApi {
  OrtStatus* (*CreateStatus)(OrtErrorCode, const char*);
  void* unused0[1];
  const char* (*GetErrorMessage)(const OrtStatus*);
  void* unused1[23];
  OrtStatus* (*CreateCustomOpDomain)(const char*, OrtCustomOpDomain**);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain*, const OrtCustomOp*);
  void* unused2[23];
  OrtStatus* (*GetTensorMutableData)(OrtValue*, void**);
  void* unused3[3];
  OrtStatus* (*CastTypeInfoToTensorInfo)(const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**);
  void* unused4[4];
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo*, ONNXTensorElementDataType*);
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo*, size_t*);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t);
  void* unused5[2];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue*, OrtTensorTypeAndShapeInfo**);
  void* unused6[9];
  OrtStatus* (*AllocatorAlloc)(OrtAllocator*, size_t, void**);
  void* unused7[10];
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo*, const char*, int64_t*);
  OrtStatus* (*KernelInfoGetAttribute_string)(const OrtKernelInfo*, const char*, char*, size_t*);
  void* unused8[2];
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext*, size_t, const OrtValue**);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**);
  void* unused9[1];
  void (*ReleaseStatus)(OrtStatus*);
  void* unused10[4];
  void (*ReleaseTypeInfo)(OrtTypeInfo*);
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo*);
  void* unused11[1];
  void (*ReleaseCustomOpDomain)(OrtCustomOpDomain*);
  void* unused12[109];
  OrtStatus* (*CreateOpAttr)(const char*, const void*, int, OrtOpAttrType, OrtOpAttr**);
  void* unused13[18];
  OrtStatus* (*KernelInfo_GetInputCount)(const OrtKernelInfo*, size_t*);
  void* unused14[1];
  OrtStatus* (*KernelInfo_GetInputName)(const OrtKernelInfo*, size_t, char*, size_t*);
  void* unused15[1];
  OrtStatus* (*KernelInfo_GetInputTypeInfo)(const OrtKernelInfo*, size_t, OrtTypeInfo**);
  void* unused16[2];
  OrtStatus* (*HasSessionConfigEntry)(const OrtSessionOptions*, const char*, int*);
  OrtStatus* (*GetSessionConfigEntry)(const OrtSessionOptions*, const char*, char*, size_t*);
  void* unused17[5];
  OrtStatus* (*KernelInfo_GetNodeName)(const OrtKernelInfo*, char*, size_t*);
  void* unused18[2];
  OrtStatus* (*Logger_LogMessage)(const OrtLogger*, OrtLoggingLevel, const char*, const char*, int, const char*);
  void* unused19[1];
  OrtStatus* (*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo*, size_t, int*, const OrtValue**);
  void* unused20[22];
  OrtStatus* (*ReadOpAttr)(const OrtOpAttr*, OrtOpAttrType, void*, size_t, size_t*);
  void* unused21[1];
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*);
  void* unused22[14];
  OrtStatus* (*GetValueInfoName)(const OrtValueInfo*, const char**);
  OrtStatus* (*GetValueInfoTypeInfo)(const OrtValueInfo*, const OrtTypeInfo**);
  const OrtModelEditorApi* (*GetModelEditorApi)(void);
  void* unused23[15];
  OrtHardwareDeviceType (*HardwareDevice_Type)(const OrtHardwareDevice*);
  void* unused24[9];
  const OrtEpApi* (*GetEpApi)(void);
  void* unused25[5];
  OrtStatus* (*ValueInfo_GetValueProducer)(const OrtValueInfo*, const OrtNode**, size_t*);
  OrtStatus* (*ValueInfo_GetValueNumConsumers)(const OrtValueInfo*, size_t*);
  void* unused26[1];
  OrtStatus* (*ValueInfo_GetInitializerValue)(const OrtValueInfo*, const OrtValue**);
  void* unused27[3];
  OrtStatus* (*ValueInfo_IsGraphOutput)(const OrtValueInfo*, bool*);
  OrtStatus* (*ValueInfo_IsConstantInitializer)(const OrtValueInfo*, bool*);
  void* unused28[12];
  OrtStatus* (*Graph_GetNumNodes)(const OrtGraph*, size_t*);
  OrtStatus* (*Graph_GetNodes)(const OrtGraph*, const OrtNode**, size_t);
  void* unused29[3];
  OrtStatus* (*Node_GetName)(const OrtNode*, const char**);
  OrtStatus* (*Node_GetOperatorType)(const OrtNode*, const char**);
  OrtStatus* (*Node_GetDomain)(const OrtNode*, const char**);
  void* unused30[1];
  OrtStatus* (*Node_GetNumInputs)(const OrtNode*, size_t*);
  OrtStatus* (*Node_GetInputs)(const OrtNode*, const OrtValueInfo**, size_t);
  OrtStatus* (*Node_GetNumOutputs)(const OrtNode*, size_t*);
  OrtStatus* (*Node_GetOutputs)(const OrtNode*, const OrtValueInfo**, size_t);
  void* unused31[4];
  OrtStatus* (*Node_GetAttributeByName)(const OrtNode*, const char*, const OrtOpAttr**);
  void* unused32[28];
  bool (*TensorTypeAndShape_HasShape)(const OrtTensorTypeAndShapeInfo*);
};

struct OrtEpApi {
  OrtStatus* (*CreateEpDevice)(OrtEpFactory*, const OrtHardwareDevice*, const OrtKeyValuePairs*,
                               const OrtKeyValuePairs*, OrtEpDevice**);
  void* unused0[1];
  OrtStatus* (*EpGraphSupportInfo_AddNodesToFuse)(OrtEpGraphSupportInfo*, const OrtNode* const*, size_t,
                                                  const OrtNodeFusionOptions*);
  OrtStatus* (*EpGraphSupportInfo_AddSingleNode)(OrtEpGraphSupportInfo*, const OrtNode*);
  void* unused1[14];
  OrtStatus* (*CreateKernelRegistry)(OrtKernelRegistry**);
  void (*ReleaseKernelRegistry)(OrtKernelRegistry*);
  OrtStatus* (*KernelRegistry_AddKernel)(OrtKernelRegistry*, const OrtKernelDef*, OrtKernelCreateFunc, void*);
  OrtStatus* (*CreateKernelDefBuilder)(OrtKernelDefBuilder**);
  void (*ReleaseKernelDefBuilder)(OrtKernelDefBuilder*);
  OrtStatus* (*KernelDefBuilder_SetOperatorType)(OrtKernelDefBuilder*, const char*);
  OrtStatus* (*KernelDefBuilder_SetDomain)(OrtKernelDefBuilder*, const char*);
  OrtStatus* (*KernelDefBuilder_SetSinceVersion)(OrtKernelDefBuilder*, int, int);
  OrtStatus* (*KernelDefBuilder_SetExecutionProvider)(OrtKernelDefBuilder*, const char*);
  void* unused2[2];
  OrtStatus* (*KernelDefBuilder_AddTypeConstraint)(OrtKernelDefBuilder*, const char*, const OrtDataType* const*,
                                                   size_t);
  void* unused3[2];
  OrtStatus* (*KernelDefBuilder_Build)(OrtKernelDefBuilder*, OrtKernelDef**);
  void (*ReleaseKernelDef)(OrtKernelDef*);
  void* unused4[6];
  OrtStatus* (*GetTensorDataType)(ONNXTensorElementDataType, const OrtDataType**);
  OrtStatus* (*EpGraphSupportInfo_LookUpKernel)(OrtEpGraphSupportInfo*, const OrtNode*, const OrtKernelDef**);
  OrtStatus* (*SharedPrePackedWeightCache_StoreWeightData)(OrtSharedPrePackedWeightCache*, void**, size_t*, size_t);
};

struct OrtModelEditorApi {
  void* unused0[6];
  OrtStatus* (*CreateNode)(const char*, const char*, const char*, const char* const*, size_t, const char* const*,
                           size_t, OrtOpAttr**, size_t, OrtNode**);
};

struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator*, size_t);
  void (*Free)(OrtAllocator*, void*);
  const struct OrtMemoryInfo* (*Info)(const OrtAllocator*);
  void* (*Reserve)(OrtAllocator*, size_t);
  OrtStatus* (*GetStats)(const OrtAllocator*, OrtKeyValuePairs**);
  void* AllocOnStream;
  OrtStatus* (*Shrink)(OrtAllocator*);
};

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  OrtMemType (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

struct OrtEp {
  uint32_t ort_version_supported;
  const char* (*GetName)(const OrtEp*);
  OrtStatus* (*GetCapability)(OrtEp*, const OrtGraph*, OrtEpGraphSupportInfo*);
  OrtStatus* (*Compile)(OrtEp*, const OrtGraph**, const OrtNode**, size_t, OrtNodeComputeInfo**, OrtNode**);
  void (*ReleaseNodeComputeInfos)(OrtEp*, OrtNodeComputeInfo**, size_t);
  OrtStatus* (*GetPreferredDataLayout)(OrtEp*, OrtEpDataLayout*);
  OrtStatus* (*ShouldConvertDataLayoutForOp)(OrtEp*, const char*, const char*, OrtEpDataLayout, int*);
  OrtStatus* (*SetDynamicOptions)(OrtEp*, const char* const*, const char* const*, size_t);
  OrtStatus* (*OnRunStart)(OrtEp*, const OrtRunOptions*);
  OrtStatus* (*OnRunEnd)(OrtEp*, const OrtRunOptions*, bool);
  OrtStatus* (*CreateAllocator)(OrtEp*, const OrtMemoryInfo*, OrtAllocator**);
  void* CreateSyncStreamForDevice;
  const char* (*GetCompiledModelCompatibilityInfo)(OrtEp*, const OrtGraph*);
  OrtStatus* (*GetKernelRegistry)(OrtEp*, const OrtKernelRegistry**);
  OrtStatus* (*IsConcurrentRunSupported)(OrtEp*, bool*);
  OrtStatus* (*Sync)(OrtEp*);
  void* CreateProfiler;
  void* IsGraphCaptureEnabled;
  void* IsGraphCaptured;
  OrtStatus* (*ReplayGraph)(OrtEp*, int);
  void* GetGraphCaptureNodeAssignmentPolicy;
  void* GetAvailableResource;
  OrtStatus* (*OnSessionInitializationEnd)(OrtEp*);
  OrtStatus* (*GetDefaultMemoryDevice)(const OrtEp*, const OrtMemoryDevice**);
  OrtStatus* (*ReleaseCapturedGraph)(OrtEp*, int);
  void* GetWeightlessSupport;
};

struct OrtEpFactory {
  uint32_t ort_version_supported;
  const char* (*GetName)(const OrtEpFactory*);
  const char* (*GetVendor)(const OrtEpFactory*);
  OrtStatus* (*GetSupportedDevices)(OrtEpFactory*, const OrtHardwareDevice* const*, size_t, OrtEpDevice**, size_t,
                                    size_t*);
  OrtStatus* (*CreateEp)(OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*, size_t,
                         const OrtSessionOptions*, const OrtLogger*, OrtEp**);
  void (*ReleaseEp)(OrtEpFactory*, OrtEp*);
  uint32_t (*GetVendorId)(const OrtEpFactory*);
  const char* (*GetVersion)(const OrtEpFactory*);
  OrtStatus* (*ValidateCompiledModelCompatibilityInfo)(OrtEpFactory*, const OrtHardwareDevice* const*, size_t,
                                                       const char*, OrtCompiledModelCompatibility*);
  OrtStatus* (*CreateAllocator)(OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*, OrtAllocator**);
  void (*ReleaseAllocator)(OrtEpFactory*, OrtAllocator*);
  OrtStatus* (*CreateDataTransfer)(OrtEpFactory*, OrtDataTransferImpl**);
  bool (*IsStreamAware)(const OrtEpFactory*);
  void* CreateSyncStreamForDevice;
  void* GetHardwareDeviceIncompatibilityDetails;
  void* CreateExternalResourceImporterForDevice;
  OrtStatus* (*GetNumCustomOpDomains)(OrtEpFactory*, size_t*);
  OrtStatus* (*GetCustomOpDomains)(OrtEpFactory*, OrtCustomOpDomain**, size_t);
  void* InitGraphicsInterop;
  OrtStatus* (*DeinitGraphicsInterop)(OrtEpFactory*, const OrtEpDevice*);
  OrtStatus* (*SelectBestModelCandidate)(OrtEpFactory*, const OrtHardwareDevice*, const OrtKeyValuePairs* const*,
                                         size_t, const OrtSessionOptions*, size_t*);
};

struct OrtKernelImpl {
  uint32_t ort_version_supported;
  uint32_t flags;
  OrtStatus* (*Compute)(OrtKernelImpl*, OrtKernelContext*);
  void (*Release)(OrtKernelImpl*);
  OrtStatus* (*PrePackWeight)(OrtKernelImpl*, const OrtValue*, int, OrtAllocator*, OrtSharedPrePackedWeightCache*,
                              bool*);
  OrtStatus* (*SetSharedPrePackedWeight)(OrtKernelImpl*, const void* const*, const size_t*, size_t, int);
};

struct OrtNodeComputeInfo {
  uint32_t ort_version_supported;
  OrtStatus* (*CreateState)(OrtNodeComputeInfo*, OrtNodeComputeContext*, void**);
  OrtStatus* (*Compute)(OrtNodeComputeInfo*, void*, OrtKernelContext*);
  void (*ReleaseState)(OrtNodeComputeInfo*, void*);
};

struct OrtNodeFusionOptions {
  uint32_t ort_version_supported;
  bool drop_constant_initializers;
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t);
  const char* (*GetVersionString)(void);
};
